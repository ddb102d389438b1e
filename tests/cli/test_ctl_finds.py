"""``ctl`` finds the one broker that runs, lists several, and asks a broker over HTTP; words mean what one expects."""

from __future__ import annotations

import json
import os
import signal
import urllib.request
from datetime import UTC, datetime, timedelta
from pathlib import Path
from time import monotonic

import pytest
from prometheus_client.parser import text_string_to_metric_families

from starlingmq.cli.announce import RunningBroker, announced, running
from starlingmq.cli.main import main
from tests.net.conftest import Certificates, certificates
from tests.patience import slowness

from .clusters import running as serving
from .commands import run, start

__all__ = ["certificates"]

LOOKS = ("alarms", "certificates", "may reader publish site/1 --qos 1")


@pytest.fixture
def alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A runtime directory in which no broker is announced."""
    directory = tmp_path / "run"
    directory.mkdir(mode=0o700)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(directory))
    monkeypatch.delenv("RUNTIME_DIRECTORY", raising=False)
    return directory


def broker(directory: Path, name: str, *words: str) -> tuple[Path, tuple[str, ...]]:
    """Log file and words of a broker with that name."""
    words = ("serve", "--name", name, "--data-dir", str(directory / name), "--listen", "mqtt://127.0.0.1:0", *words)
    return directory / f"{name}.log", words


@pytest.mark.slow
def test_the_one_running_broker_is_found_and_of_several_a_list_is_printed(tmp_path: Path, alone: Path) -> None:
    code, _, errors = run("ctl", "clients")
    assert code == 2 and "no broker with a data directory is running here; give --data-dir DIR" in errors
    log, words = broker(tmp_path, "one")
    with serving(log, *words) as one:
        (announcement,) = (alone / "starlingmq").glob("*.json")
        assert announcement.stat().st_mode & 0o077 == 0 and announcement.parent.stat().st_mode & 0o077 == 0
        assert run("ctl", "status")[1].startswith(b"HEALTHY: one accepts clients")
        log, words = broker(tmp_path, "two")
        with serving(log, *words) as two:
            code, output, errors = run("ctl", "clients")
            assert (code, output) == (2, b"")
            assert f"--data-dir {tmp_path / 'one'}   (one, process {one.process.pid})" in errors
            assert f"--data-dir {tmp_path / 'two'}   (two, process {two.process.pid})" in errors
            assert errors.endswith("error: choose one of them with --data-dir DIR\n")
            assert run("ctl", "clients", "--data-dir", str(tmp_path / "two"))[0] == 0
            two.process.send_signal(signal.SIGKILL)
            two.process.communicate()
            assert len(list(announcement.parent.iterdir())) == 2, "it could not remove its announcement"
            assert run("ctl", "status")[1].startswith(b"HEALTHY: one accepts clients")
    assert not announcement.exists()


@pytest.mark.slow
@pytest.mark.parametrize("critical", [False, True])
def test_status_names_the_alarms_and_ends_with_the_exit_code_of_the_worst(
    tmp_path: Path, alone: Path, certificates: Certificates, critical: bool
) -> None:
    """A certificate that lives for a day ends in six hours; and another one in two."""
    log, words = broker(tmp_path, "one")
    listeners = []
    for hours in (6, 2) if critical else (6,):
        cert, key = certificates.issue(f"ends-in-{hours}", ended=datetime.now(UTC) + timedelta(hours=hours))
        listeners.append(f"{{url: 'mqtts://127.0.0.1:0', tls: {{cert: {cert}, key: {key}}}}}")
    words = (*words[:5], "--set", f"listeners=[{', '.join(listeners)}]")  # in place of the listener without TLS
    state = b"CRITICAL, 2 alarms, 1 critical" if critical else b"HEALTHY, 1 alarm"
    line = state + b" (starlingmq ctl alarms): one accepts clients"
    with serving(log, *words):
        until = monotonic() + 30 * slowness()
        while not (told := run("ctl", "status"))[1].startswith(line) and monotonic() < until:
            pass
        assert told[:2] == ((4 if critical else 5), told[1]) and told[1].startswith(line)
        counted = json.loads(run("ctl", "status", "--json")[1])["alarms"]
        assert counted == {"critical": int(critical), "other": 1}


@pytest.mark.slow
def test_status_tells_what_was_dropped_in_the_last_hour(tmp_path: Path, alone: Path) -> None:
    """Also where no alarm is active, or none any more."""
    log, words = broker(tmp_path, "one", "--set", "mqtt.max_mqueue_len=1")
    with serving(log, *words) as one:
        assert b"Dropped" not in run("ctl", "status")[1]
        where = ("-L", one.urls[0], "-q", "1", "-t", "orders")
        assert run("sub", *where, "-i", "billing", "-c", "-E")[0] == 0
        for number in range(3):
            assert run("pub", *where, "-m", str(number))[0] == 0
        told = run("ctl", "status")[1].decode()
        assert told.endswith("Dropped in the last hour: 2 queue_full (starlingmq ctl droppers).\n"), told


def test_an_announcement_is_believed_only_if_nobody_else_can_have_written_it(tmp_path: Path, alone: Path) -> None:
    with announced("one", str(tmp_path)):
        assert (alone / "starlingmq" / f"{os.getpid()}.json").exists()
        assert running() == [], "nobody listens at the control socket"
    directory = alone / "starlingmq"
    assert list(directory.iterdir()) == []
    directory.chmod(0o777)
    with announced("one", str(tmp_path)):
        assert list(directory.iterdir()) == []
    directory.chmod(0o700)
    for content in ("", "{}", "[]", '{"name": "x", "directory": 7}', "nonsense"):
        (directory / "1.json").write_text(content)
        assert running() == []
    assert RunningBroker("a", tmp_path, 1) < RunningBroker("b", tmp_path, 1)


def names(metrics: bytes) -> list[str]:
    """The samples of a text for Prometheus, without their values; the lines about metrics are checked by its parser."""
    families = list(text_string_to_metric_families(metrics.decode()))
    assert all(family.documentation and family.type != "unknown" for family in families)
    return [f"{one.name}{one.labels}" for family in families for one in family.samples]


@pytest.mark.slow
def test_ctl_asks_a_broker_over_http_with_a_token(tmp_path: Path, alone: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    token = tmp_path / "token"
    token.write_text("0123456789abcdef0123456789abcdef\n")
    token.chmod(0o600)
    settings = ("--set", f"auth.api.token_file={token}", "--listen", "http://127.0.0.1:0")
    log, words = broker(tmp_path, "one", *settings)
    with serving(log, *words) as one:
        mqtt, url = one.urls
        code, _, errors = run("ctl", "clients", "--url", url)
        assert code == 2 and "set STARLINGMQ_TOKEN_FILE to a file with a token" in errors
        monkeypatch.setenv("STARLINGMQ_TOKEN_FILE", str(token))
        reader = start("sub", "-L", mqtt, "-d", "-i", "reader", "-c", "site/#")
        reader.wait_for(b"received SUBACK")
        code, output, errors = run("ctl", "clients", "--url", url)
        assert code == 0 and output.splitlines()[1].startswith(b"reader  "), errors
        for asked in ("session reader", "sessions --away", "status", "retained", "bans", "groups", "log", *LOOKS):
            code, output, errors = run("ctl", *asked.split(), "--url", url)
            assert code == 0, (asked, errors)
        request = urllib.request.Request(
            f"{url}/metrics", headers={"authorization": f"Bearer {token.read_text().strip()}"}
        )
        with urllib.request.urlopen(request) as scraped:
            told = names(scraped.read())
        assert len(told) > 100 and told == names(run("ctl", "metrics", "--url", url)[1])
        assert told == names(run("ctl", "metrics")[1])
        few = run("ctl", "metrics", "starlingmq_clients_")[1].decode().splitlines()
        assert [line.split()[1] for line in few[:2]] == ["HELP", "TYPE"]
        assert all("starlingmq_clients_" in line.split(" ", 3)[2 * line.startswith("#")] for line in few)
        assert json.loads(run("ctl", "publish", "site/1", "m", "--url", url, "--json")[1])["receivers"] == 1
        assert run("ctl", "ban", "client", "evil", "-t", "10m", "--url", url)[0] == 0
        assert b"evil" in run("ctl", "bans", "--url", url)[1]
        code, output, _ = run("ctl", "may", "evil", "publish", "site/1", "--retain", "--url", url)
        assert code == 1 and output.startswith(b"denied: the client evil is banned")
        assert run("ctl", "health", "--url", url)[:2] == (0, b"ok\n")
        assert run("ctl", "kick", "reader", "--url", url)[0] == 0
        reader.interrupt()
        reader.finish()
        code, output, errors = run("ctl", "tail", "site/#", "-W", "0.1", "--url", url)
        assert (code, output) == (0, b""), errors
        code, _, errors = run("ctl", "cluster", "status", "--url", url)
        assert code == 2 and "not a member of a cluster" in errors
        assert "0123456789abcdef" not in log.read_text()


@pytest.mark.slow
def test_words_without_options_are_the_filter_the_topic_and_the_message(tmp_path: Path, alone: Path) -> None:
    log, words = broker(tmp_path, "one")
    with serving(log, *words) as one:
        (url,) = one.urls
        reader = start("sub", "-L", url, "-d", "-v", "-C", "2", "site/#", "other/+")
        reader.wait_for(b"received SUBACK")
        assert run("pub", "-L", url, "site/1", "hello there")[0] == 0
        assert run("pub", "-L", url, "-t", "other/1", "21")[0] == 0
        code, output, _ = reader.finish()
        assert (code, output) == (0, b"site/1 hello there\nother/1 21\n")


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["pub", "a"], "nothing to send: give one of -m TEXT, -f FILE, -l, -s or -n, or: starlingmq pub TOPIC MESSAGE"),
        (["pub"], "nothing to send"),
        (["pub", "a", "hello", "there"], "unexpected argument 'there'; a message of several words needs quotes"),
        (["sub"], "no topic filter given: starlingmq sub FILTER, or -t FILTER"),
        (["sub", "a#"], "'a#' is not a topic filter"),
        (["sub", "-h"], "-h is the host of the broker, --help prints the help"),
        (["bench", "stray"], "unexpected argument 'stray'"),
    ],
)
def test_a_wrong_word_is_answered_with_the_right_one(
    words: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words) == 2
    assert sentence in capsys.readouterr().err


@pytest.mark.parametrize("words", ["-h", "ctl -h", "ctl clients -h", "ctl cluster -h", "serve -h"])
def test_help_is_printed_for_h(words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words.split()) == 0
    assert "Usage: " in capsys.readouterr().out


def test_the_version_is_known_without_a_broker(alone: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ctl", "version"]) == 0
    assert capsys.readouterr().out.startswith("starlingmq ")
