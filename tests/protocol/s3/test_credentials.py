"""Credentials come from the environment and go nowhere else; a store that cannot be used is one clear error."""

import logging
import subprocess
import sys
import time
import traceback
from pathlib import Path

import pytest

from medallion.errors import ConfigurationError
from medallion.lake import Lake
from medallion.objects import conceal
from medallion.refine import refine
from medallion.store import open_place
from tests.protocol.s3.server import KEY, SECRET, Proxy, free_port
from tests.protocol.shop import DAY, DAYS, Shop, build, land, make_run

FIRST = DAYS[0]
WRONG = "wrong-secret-5d1e0c77b2"


def _refusal(address: str) -> tuple[str, str]:
    """The error's message, and all that a traceback shows."""
    with pytest.raises(ConfigurationError) as caught:
        Lake(address)
    return str(caught.value), "".join(traceback.format_exception(caught.value))


def test_credentials_are_in_nothing_that_was_written_said_or_shown(
    lossy: str, proxy: Proxy, tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    caplog.set_level(logging.DEBUG)
    said: list[str] = []
    run = make_run(lossy, tmp_path)
    for quantities in ([1, 2, -3], [5000], [4]):
        land(tmp_path / "landing", FIRST, quantities)
        run = make_run(lossy, tmp_path / "landing")
        said += [repr(report) for report in build(Shop(), [FIRST], run)]
    proxy.reset(lambda count, path: "_delta_log" in path or "_held" in path)
    for quantities in ([7], [6000]):
        land(tmp_path / "landing", FIRST, quantities)
        said += [repr(report) for report in build(Shop(), [FIRST], run)]
    proxy.is_down = True
    land(tmp_path / "landing", FIRST, [8])
    with pytest.raises(ConfigurationError) as caught:
        refine(Shop().raw, [FIRST], run)
    said += traceback.format_exception(caught.value)
    said += _refusal(lossy)
    proxy.reset()
    lake = run.lake
    snapshot = lake.pin("silver/orders", DAY)
    rows = snapshot.scan([FIRST])
    said += [repr(each) for each in (lake, vars(lake), snapshot, run, lake.root, rows, lake.root / "silver")]
    said += [rows.explain(), str(lake.root), caplog.text]
    written = {str(path): path.read_bytes() for path in open_place(lossy).rglob("*")}
    assert len(written) > 20
    for secret in (SECRET, KEY):
        assert [name for name, data in written.items() if secret.encode() in data or secret in name] == []
        assert [text for text in said if secret in text] == []
        assert secret.encode() not in rows.serialize()


def test_wrong_credentials_are_one_error_that_says_which_variables_to_set_and_not_to_what(
    bucket: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", WRONG)
    message, shown = _refusal(bucket)
    assert message.startswith(f"the lake {bucket} cannot be opened: ")
    assert "403 Forbidden" in message
    assert "Set AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_ENDPOINT_URL, AWS_REGION and AWS_ALLOW_HTTP" in message
    assert "\n" not in message
    assert WRONG not in shown
    assert KEY not in shown


def test_an_endpoint_that_does_not_answer_is_one_error_within_seconds(bucket: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{free_port()}")
    started = time.monotonic()
    message, shown = _refusal(bucket)
    assert time.monotonic() - started < 10
    assert "error sending request" in message
    assert "AWS_ENDPOINT_URL" in message
    assert SECRET not in shown


@pytest.mark.parametrize("name", ["AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"])
def test_credentials_that_are_not_set_are_named_before_anything_is_asked(
    bucket: str, monkeypatch: pytest.MonkeyPatch, name
):
    monkeypatch.delenv(name)
    message, _ = _refusal(bucket)
    assert f"cannot be opened: {name} is not set. " in message


def test_credentials_that_are_taken_back_later_are_told_as_such_and_not_as_a_damaged_table(
    bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    land(tmp_path / "landing", FIRST, [1])
    run = make_run(bucket, tmp_path / "landing")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", WRONG)
    with pytest.raises(ConfigurationError, match="403 Forbidden") as caught:
        make_run(bucket, tmp_path / "landing")
    assert WRONG not in "".join(traceback.format_exception(caught.value))
    with pytest.raises(ConfigurationError, match="lacked the necessary privileges") as caught:
        refine(Shop().raw, [FIRST], run)
    assert "AWS_SECRET_ACCESS_KEY" in str(caught.value)
    assert WRONG not in "".join(traceback.format_exception(caught.value))


@pytest.mark.parametrize("address", ["s3://", "gs://bucket/lake", "s3:///lake"])
def test_an_address_that_names_no_bucket_is_refused(bucket: str, address):
    message, _ = _refusal(address)
    assert message == f"{address!r} names no lake: write a folder, or s3://bucket/prefix."


def test_the_command_line_says_it_in_one_line(bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", WRONG)
    monkeypatch.setenv("MEDALLION_LAKE", bucket)
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[3]))
    told = subprocess.run(
        [sys.executable, "-c", "from medallion.cli import main; main()", "inspect", "silver/orders", FIRST],
        capture_output=True, text=True, check=False, cwd=tmp_path,
    )  # fmt: skip
    assert told.returncode == 2
    assert told.stderr.startswith(f"error: the lake {bucket} cannot be opened: ")
    assert told.stderr.count("\n") == 1
    assert WRONG not in told.stdout + told.stderr


def test_a_message_that_quotes_a_credential_is_shown_without_it(bucket: str):
    assert conceal(f"\x1b[31mrefused\x1b[0m {SECRET} of {KEY}") == (
        "refused <AWS_SECRET_ACCESS_KEY> of <AWS_ACCESS_KEY_ID>"
    )
