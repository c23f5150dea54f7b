"""Dagster runs in this process, which tell of what is made ahead of them, with all the events of ordinary runs."""

from collections.abc import Collection, Sequence

import dagster as dg
from dagster._core.storage.tags import ASSET_PARTITION_RANGE_END_TAG, ASSET_PARTITION_RANGE_START_TAG

from assets.ahead import Ahead, Piece, telling
from assets.chains import Chain, neighbours
from assets.definitions import defs
from assets.specs import asset_key
from checks.translate import GATE
from medallion.partitions import Whole


def run_chain(chain: Chain, ahead: Ahead, instance: dg.DagsterInstance) -> tuple[set[str], list[str]]:
    """Run everything of a chain that is pending, or that Dagster does not know of, since its instance may be new.

    Returns:
        the partitions that were run, and the messages of what was refused.
    """
    cut = chain[0].partition
    pieces = ahead.pieces(chain)
    keys = {key for piece in pieces for key in piece.keys}
    known = set(cut.keys()).intersection(*(_known(chain, asset_key(table), instance) for table in chain))
    unknown = set(cut.keys()) - known - keys
    failures = [message for piece in pieces for message in execute(chain, piece.keys, instance, piece)]
    failures += [message for some in neighbours(cut, unknown) for message in execute(chain, some, instance)]
    return keys | unknown, failures


def _known(chain: Chain, asset: dg.AssetKey, instance: dg.DagsterInstance) -> Collection[str]:
    cut = chain[0].partition
    if isinstance(cut, Whole):
        return cut.keys() if instance.get_latest_materialization_event(asset) else ()
    return instance.get_materialized_partitions(asset)


def execute(chain: Chain, keys: Sequence[str], instance: dg.DagsterInstance, piece: Piece | None = None) -> list[str]:
    """One Dagster run for a row of neighbouring partitions; the messages of what was refused.

    Args:
        chain: the tables.
        keys: the partitions.
        instance: which is told.
        piece: what is made ahead for this run; None if it makes everything itself.
    """
    assets = [asset_key(table) for table in chain]
    whole = defs.resolve_implicit_job_def_def_for_assets(assets)
    assert whole is not None
    # Of the checks only the gates are planned: Dagster would have to be told of each rule for each of hundreds of
    # partitions (10 ms each on SQLite), most of which found nothing. Those that did are reported all the same.
    gates = {dg.AssetCheckKey(key, GATE) for key in assets}
    job = whole.get_subset(asset_selection=set(assets), asset_check_selection=gates)
    tags = (
        {}
        if isinstance(chain[0].partition, Whole)
        else {ASSET_PARTITION_RANGE_START_TAG: keys[0], ASSET_PARTITION_RANGE_END_TAG: keys[-1]}
    )
    # Every event goes to the instance, where the UI shows it; the terminal is for progress and the summary.
    quiet = {"loggers": {"console": {"config": {"log_level": "CRITICAL"}}}}
    with telling(piece):
        result = job.execute_in_process(
            run_config=quiet, instance=instance, tags=tags, raise_on_error=False, run_id=piece.run_id if piece else None
        )
    return [_message(event) for event in result.all_events if event.is_step_failure]


def _message(event: dg.DagsterEvent) -> str:
    """What a failed step says to people: the engine's own message if there is one."""
    data = event.step_failure_data
    if data.user_failure_data is not None and data.user_failure_data.description:
        return data.user_failure_data.description
    return data.error_display_string
