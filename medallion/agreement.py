"""Whether what was read back of a partition agrees: with file names, the log, the evidence, the quarantine, the fence.

One fault is named once: rows of a file whose bytes are not those that its name promises are not compared any further.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from medallion.differences import Difference, Kind
from medallion.evidence import Evidence
from medallion.identity import batch_id_of
from medallion.readback import PartitionRead, ReadFile, ReadSource
from medallion.tables import Table

__all__ = ["disagreements"]

_REPAIR = "Nothing was changed. medallion check-lake says how to put it back."
_DIGEST = 32
"""Characters of a SHA-256 that a content digest has."""


def disagreements(table: Table, read: PartitionRead) -> list[Difference]:
    """Everything about one partition of a table, and of its quarantine, that does not agree."""
    look = _Look(table, read)
    found = [*look.foreign(), *look.files()]
    if read.accepted:
        found += [*look.fence(), *look.evidence(), *look.sources()]
    if table.quarantine_path is not None and not read.foreign:
        found += look.quarantine()
    return found


@dataclass(frozen=True)
class _Look:
    table: Table
    read: PartitionRead

    def _difference(self, kind: Kind, expected: str, found: str, then: str, **more: str | None) -> Difference:
        path = more.get("table") or self.table.path
        return Difference(kind, path, self.read.key, more.get("file"), expected, found, then)

    @property
    def _replay(self) -> str:
        return f"medallion replay {self.table.path} {self.read.key}"

    def foreign(self) -> Iterator[Difference]:
        for path, why in self.read.foreign.items():
            yield self._difference(Kind.FILE_FOREIGN, "files that this engine has named", why, _REPAIR, table=path)

    def files(self) -> Iterator[Difference]:
        """Bytes against names and the log; each live file is there, whole, in the folder of its partition."""
        for path, files in ((self.table.path, self.read.accepted), (self.table.quarantine_path, self.read.refused)):
            for each in files:
                found = self._file(each)
                if found is not None:
                    kind, expected, stands = found
                    yield self._difference(kind, expected, stands, _REPAIR, table=path, file=each.path)

    def _file(self, read: ReadFile) -> tuple[Kind, str, str] | None:
        file, found = read.file, read.found
        folder = self.table.partition.folder(self.read.key)
        if file.path.rpartition("/")[0] != folder:
            return Kind.FILE_FOREIGN, f"a file in {folder or 'the folder of the table'}", file.path
        if found is None:
            kind = Kind.FILE_ALTERED if read.error else Kind.FILE_MISSING
            return kind, f"{file.rows:,} rows in {file.size:,} bytes", read.error or "no file"
        if found.sha256[:_DIGEST] != file.digest:
            rows = "and no Parquet footer" if found.rows is None else f"with {found.rows:,} rows"
            stands = f"{found.sha256[:_DIGEST]} {rows} in {found.size:,} bytes"
            return Kind.FILE_ALTERED, f"bytes of digest {file.digest}", stands
        if (found.size, found.rows) != (file.size, file.rows):
            log = f"{file.rows:,} rows in {file.size:,} bytes, by the log"
            return Kind.ROWS, log, f"{found.rows:,} rows in {found.size:,} bytes"
        return None

    def fence(self) -> Iterator[Difference]:
        """Whoever commits a partition raises its fence, in the table and in its quarantine."""
        paths = [self.table.path] + ([] if self.table.quarantine_path is None else [self.table.quarantine_path])
        for path, epoch in zip(paths, self.read.epochs, strict=False):
            if epoch < 1:
                yield self._difference(
                    Kind.FENCE, "an epoch of 1 or more, since it was committed", f"epoch {epoch}", _REPAIR, table=path
                )

    def evidence(self) -> Iterator[Difference]:
        """The evidence is there, is about these files, and has the numbers that are in them."""
        batch_id = self.read.accepted[0].file.batch_id
        evidence = self.read.evidence
        if evidence is None:
            kind = Kind.EVIDENCE_ALTERED if self.read.unreadable else Kind.EVIDENCE_MISSING
            then = f"{self._replay} works it out again; the rows stay as they are."
            found = self.read.unreadable or "none"
            yield self._difference(kind, f"the evidence of batch {batch_id}", found, then)
            return
        where = f"{self.table.path}/_evidence"
        then = f"Move the file that tells of batch {batch_id} out of {where}; then {self._replay} works it out again."
        for expected, found in self._told(evidence):
            yield self._difference(Kind.EVIDENCE_ALTERED, expected, found, then, file=where)

    def _told(self, evidence: Evidence) -> Iterator[tuple[str, str]]:
        files = self.read.accepted
        batch_id, content = files[0].file.batch_id, "+".join(sorted(each.file.digest for each in files))
        verdict = evidence.verdict
        for what, live, told in (
            ("table", self.table.path, evidence.table),
            ("partition", self.read.key, evidence.partition),
            ("batch", batch_id, evidence.batch_id),
            ("batch, by its own inputs and code,", batch_id, batch_id_of(evidence)),
            ("content", content, evidence.content),
            ("table of the verdict", self.table.path, verdict.table),
            ("partition of the verdict", self.read.key, verdict.partition),
        ):
            if live != told:
                yield f"{what} {live}", told
        if all(_sound(each) for each in files):
            rows = sum(each.file.rows for each in files)
            if rows != verdict.accepted:
                yield f"{rows:,} rows accepted, as its files hold", f"{verdict.accepted:,} in the verdict"

    def quarantine(self) -> Iterator[Difference]:
        """It holds the rows that the live batch refused, and no others."""
        files, evidence = self.read.refused, self.read.evidence
        found = f"{sum(each.file.rows for each in files):,} rows of batch {files[0].file.batch_id}" if files else "none"
        expected = None
        if not self.read.accepted:
            expected = "no rows, since the partition is not committed" if files else None
        elif evidence is not None:
            verdict, batch_id = evidence.verdict, self.read.accepted[0].file.batch_id
            if not verdict.quarantined:
                expected = "no rows, since its verdict refused none" if files else None
            elif not files or files[0].file.batch_id != batch_id:
                expected = f"{verdict.quarantined:,} rows of batch {batch_id}"
            elif [each.file.digest for each in files] != [evidence.refused]:
                expected, found = f"the file of digest {evidence.refused}", files[0].file.digest
            elif _sound(files[0]) and files[0].file.rows != verdict.quarantined:
                expected = f"{verdict.quarantined:,} rows, by the verdict"
        if expected is not None:
            then = f"{self._replay} puts back what belongs there."
            yield self._difference(Kind.QUARANTINE, expected, found, then, table=self.table.quarantine_path)

    def sources(self) -> Iterator[Difference]:
        """The bytes that a partition was parsed from are kept as they came."""
        for each in self.read.sources:
            found = _source(each)
            if found is not None:
                source = each.source
                then = f"Put the bytes of {source.name} back there, from a backup or from whoever delivered them."
                expected = f"{source.size:,} bytes of SHA-256 {source.sha256}"
                yield self._difference(Kind.SOURCE, expected, found, then, file=source.kept)


def _sound(read: ReadFile) -> bool:
    """Whether a file holds the bytes that its name promises."""
    return read.found is not None and read.found.sha256[:_DIGEST] == read.file.digest


def _source(read: ReadSource) -> str | None:
    if read.found is None:
        return read.error or "no file"
    if (read.found.sha256, read.found.size) == (read.source.sha256, read.source.size):
        return None
    return f"{read.found.size:,} bytes of SHA-256 {read.found.sha256}"
