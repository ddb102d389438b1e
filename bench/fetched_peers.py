"""Other brokers, fetched by name from the package registries, or given as a path.

Each is stored in its own folder below ``build/peers`` (git ignores it). Every broker has its documented configuration
with a loopback listener and anonymous clients, one thread if the number is configurable, and no disk if it can run
without: StarlingMQ and mosquitto store nothing either. Deviations are noted at each configuration.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final

import msgspec

ROOT: Final = Path(__file__).parent.parent
CACHE: Final = Path(os.environ.get("STARLINGMQ_BENCH_PEERS", ROOT / "build" / "peers"))
FETCH_TIMEOUT_S: Final = 900.0

NATS_MODULE: Final = "github.com/nats-io/nats-server/v2@latest"
FLUXMQ_MODULE: Final = "github.com/absmach/fluxmq/cmd@latest"
RUMQTTD: Final = "0.20.0"
AEDES: Final = "1.2.0"
AMQTT: Final = "0.12.1"
HIVEMQ: Final = "2025.5"

AMQTT_CONF = """\
listeners:
  default:
    type: tcp
    bind: 127.0.0.1:{port}
plugins:
  amqtt.plugins.authentication.AnonymousAuthPlugin:
    allow_anonymous: true
"""

# One thread on one core; everything else is its default.
FLASHMQ_CONF = """\
allow_anonymous true
thread_count 1
log_file {folder}/flashmq.log
log_level error
listen {{
  protocol mqtt
  inet_protocol ip4
  inet4_bind_address 127.0.0.1
  port {port}
}}
"""

# The configuration of its docker image, but in memory.
FLUXMQ_CONF = """\
server:
  tcp:
    v3:
      addr: "127.0.0.1:{port}"
      protocol: "v3"
cluster:
  enabled: false
storage:
  type: "memory"
log:
  level: "error"
"""

# Its own rumqttd.toml: one listener for 3.1.1, no bridge, no metrics. It stores messages in segments in memory, and
# accepts 10,010 connections, one per millisecond.
RUMQTTD_CONF = """\
id = 0
[router]
id = 0
max_connections = 10010
max_outgoing_packet_count = 200
max_segment_size = 104857600
max_segment_count = 10
[v4.1]
name = "v4-1"
listen = "127.0.0.1:{port}"
next_connection_delay_ms = 1
    [v4.1.connections]
    connection_timeout_ms = 60000
    max_payload_size = 20480
    max_inflight_count = 100
    dynamic_filters = true
"""

# No AMQP listener; the settings of its MQTT plugin are the defaults.
RABBITMQ_CONF = """\
listeners.tcp = none
mqtt.listeners.tcp.1 = 127.0.0.1:{port}
mqtt.allow_anonymous = true
log.console = false
log.file.level = error
"""

# The example in its README.
AEDES_MAIN = """\
import { createServer } from 'node:net'
import { Aedes } from 'aedes'
const broker = await Aedes.createBroker()
createServer(broker.handle).listen(Number(process.argv[2]), '127.0.0.1')
"""

HIVEMQ_CONF = """\
<?xml version="1.0"?>
<hivemq>
  <listeners><tcp-listener><port>{port}</port><bind-address>127.0.0.1</bind-address></tcp-listener></listeners>
  <persistence><mode>in-memory</mode></persistence>
  <anonymous-usage-statistics><enabled>false</enabled></anonymous-usage-statistics>
</hivemq>
"""

# Its embedded mode. Without an extension it refuses all clients: the flag has the effect of its "allow all" extension.
HIVEMQ_MAIN = """\
import com.hivemq.configuration.service.InternalConfigurations;
import com.hivemq.embedded.EmbeddedHiveMQ;
import java.nio.file.Path;

public class Main {
    public static void main(String[] folder) throws Exception {
        InternalConfigurations.AUTH_DENY_UNAUTHENTICATED_CONNECTIONS.set(false);
        Path home = Path.of(folder[0]);
        EmbeddedHiveMQ.builder().withConfigurationFolder(home).withDataFolder(home.resolve("data"))
            .withExtensionsFolder(home.resolve("extensions")).build().start().join();
        Thread.currentThread().join();
    }
}
"""

HIVEMQ_POM = f"""\
<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>bench</groupId><artifactId>bench</artifactId><version>1</version>
  <dependencies>
    <dependency>
      <groupId>com.hivemq</groupId><artifactId>hivemq-community-edition-embedded</artifactId><version>{HIVEMQ}</version>
    </dependency>
  </dependencies>
</project>
"""


class PeerError(Exception):
    """A broker is not installed or did not start."""


class Peer(msgspec.Struct, frozen=True):
    """``fetch`` installs it; ``installed`` is a file that then exists. ``command`` writes its configuration."""

    installed: Callable[[], Path]
    fetch: Callable[[], None]
    command: Callable[[int, Path], list[str]]
    version: Callable[[], str]
    environment: Callable[[Path], dict[str, str]] = lambda folder: {}
    ended: Callable[[], None] = lambda: None  # ends processes that the broker leaves behind


def run(*words: str | Path, cwd: Path | None = None, **environment: str) -> str:
    """Run a client of a registry. Raises PeerError with its last line of output."""
    if shutil.which(str(words[0])) is None:
        raise PeerError(f"{words[0]} is not installed")
    try:
        done = subprocess.run(
            [str(word) for word in words],
            cwd=cwd or CACHE,
            env={**os.environ, **environment},
            capture_output=True,
            text=True,
            timeout=FETCH_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise PeerError(f"{words[0]} has not finished in {FETCH_TIMEOUT_S:.0f} s") from None
    if done.returncode:
        said = (done.stderr or done.stdout).strip().splitlines()
        raise PeerError(said[-1].strip() if said else f"{words[0]} failed")
    return done.stdout + done.stderr


def given(variable: str) -> Path:
    """Return a program whose path is in the environment."""
    path = os.environ.get(variable, "")
    if not path or not shutil.which(path):
        raise PeerError(f"no registry has it; set {variable}= to the path of its program")
    return Path(path)


def apt(package: str) -> None:
    if os.geteuid() != 0 or not shutil.which("apt-get"):
        raise PeerError(f"not installed (Debian: apt-get install {package})")
    run("apt-get", "install", "-y", "--no-install-recommends", package, cwd=ROOT)


def written(path: Path, text: str, **values: object) -> str:
    path.write_text(text.format(**values) if values else text)
    return str(path)


def go_program(name: str) -> Path:
    return CACHE / "go" / name


def fetch_go(module: str) -> None:
    run("go", "install", module, GOBIN=str(CACHE / "go"))


def fetch_amqtt() -> None:
    run(sys.executable, "-m", "venv", CACHE / "amqtt")
    run(CACHE / "amqtt" / "bin" / "pip", "install", "-q", f"amqtt=={AMQTT}")


def fetch_rumqttd() -> None:
    run("cargo", "install", "rumqttd", "--version", RUMQTTD, "--root", CACHE / "rumqttd")


def fetch_aedes() -> None:
    folder = CACHE / "aedes"
    folder.mkdir(exist_ok=True)
    written(folder / "main.mjs", AEDES_MAIN)
    run("npm", "install", "--no-fund", "--no-audit", "--prefix", folder, f"aedes@{AEDES}")


def fetch_hivemq() -> None:
    folder = CACHE / "hivemq"
    folder.mkdir(exist_ok=True)
    written(folder / "pom.xml", HIVEMQ_POM)
    written(folder / "Main.java", HIVEMQ_MAIN)
    run("mvn", "-q", "-B", "dependency:copy-dependencies", "-DoutputDirectory=lib", cwd=folder)
    run("javac", "-cp", f"{folder}/lib/*", "-d", folder, folder / "Main.java")


def hivemq(port: int, folder: Path) -> list[str]:
    for name in ("data", "extensions"):
        (folder / name).mkdir()
    written(folder / "config.xml", HIVEMQ_CONF, port=port)
    cache = CACHE / "hivemq"
    return ["java", "-Djava.net.preferIPv4Stack=true", "-cp", f"{cache}:{cache}/lib/*", "Main", str(folder)]


def rabbitmq(port: int, folder: Path) -> list[str]:
    written(folder / "rabbitmq.conf", RABBITMQ_CONF, port=port)
    written(folder / "enabled_plugins", "[rabbitmq_mqtt].")
    return [str(RABBITMQ)]


def rabbitmq_environment(folder: Path) -> dict[str, str]:
    # Its ports for other nodes are on loopback. Its epmd outlives it: ``stop_epmd``.
    return {
        "HOME": str(folder),
        "RABBITMQ_NODENAME": f"bench-{folder.name.replace('_', '-')}@localhost",
        "RABBITMQ_CONFIG_FILE": str(folder / "rabbitmq"),
        "RABBITMQ_ENABLED_PLUGINS_FILE": str(folder / "enabled_plugins"),
        "RABBITMQ_MNESIA_BASE": str(folder / "mnesia"),
        "RABBITMQ_LOG_BASE": str(folder / "logs"),
        "ERL_EPMD_PORT": EPMD_PORT,
        "ERL_EPMD_ADDRESS": "127.0.0.1",
        "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "-kernel inet_dist_use_interface {127,0,0,1}",
        "ERL_CRASH_DUMP": str(folder / "crash"),
    }


def flashmq(port: int, folder: Path) -> list[str]:
    return [str(given("FLASHMQ")), "--config-file", written(folder / "c", FLASHMQ_CONF, port=port, folder=folder)]


RABBITMQ: Final = Path("/usr/lib/rabbitmq/bin/rabbitmq-server")
EPMD_PORT: Final = "4399"  # used by this benchmark only


def stop_epmd() -> None:
    subprocess.run(["epmd", "-port", EPMD_PORT, "-kill"], capture_output=True, check=False)


def nothing() -> None:
    """Cannot be fetched: the user must provide it."""


PEERS: Final[dict[str, Peer]] = {
    "flashmq": Peer(
        installed=lambda: given("FLASHMQ"),
        fetch=nothing,
        command=flashmq,
        version=lambda: run(given("FLASHMQ"), "--version").split("\n")[0].split()[-1],
    ),
    "rabbitmq": Peer(
        installed=lambda: RABBITMQ,
        fetch=lambda: apt("rabbitmq-server"),
        command=rabbitmq,
        version=lambda: run("dpkg-query", "-W", "-f", "${Version}", "rabbitmq-server").partition("-")[0],
        environment=rabbitmq_environment,
        ended=stop_epmd,
    ),
    "hivemq": Peer(
        installed=lambda: CACHE / "hivemq" / "Main.class", fetch=fetch_hivemq, command=hivemq, version=lambda: HIVEMQ
    ),
    "rumqttd": Peer(
        installed=lambda: CACHE / "rumqttd" / "bin" / "rumqttd",
        fetch=fetch_rumqttd,
        command=lambda port, folder: [
            str(CACHE / "rumqttd" / "bin" / "rumqttd"),
            "--config",
            written(folder / "rumqttd.toml", RUMQTTD_CONF, port=port),
            "--quiet",
        ],
        version=lambda: RUMQTTD,
    ),
    "fluxmq": Peer(
        installed=lambda: go_program("cmd"),
        fetch=lambda: fetch_go(FLUXMQ_MODULE),
        command=lambda port, folder: [
            str(go_program("cmd")),
            "-config",
            written(folder / "fluxmq.yaml", FLUXMQ_CONF, port=port),
        ],
        version=lambda: run("go", "version", "-m", go_program("cmd")).partition("mod\t")[2].split()[1],
    ),
    "aedes": Peer(
        installed=lambda: CACHE / "aedes" / "main.mjs",
        fetch=fetch_aedes,
        command=lambda port, folder: ["node", str(CACHE / "aedes" / "main.mjs"), str(port)],
        version=lambda: AEDES,
    ),
    "amqtt": Peer(
        installed=lambda: CACHE / "amqtt" / "bin" / "amqtt",
        fetch=fetch_amqtt,
        command=lambda port, folder: [
            str(CACHE / "amqtt" / "bin" / "amqtt"),
            "-c",
            written(folder / "amqtt.yaml", AMQTT_CONF, port=port),
        ],
        version=lambda: AMQTT,
    ),
    "nats-server": Peer(
        installed=lambda: go_program("nats-server"),
        fetch=lambda: fetch_go(NATS_MODULE),
        command=lambda port, folder: [str(go_program("nats-server")), "--addr", "127.0.0.1", "--port", str(port)],
        version=lambda: run(go_program("nats-server"), "--version").split()[-1].removeprefix("v"),
    ),
}


def install(peer: str) -> None:
    """Fetch a missing peer. Raises PeerError with the reason for a failure in one line."""
    CACHE.mkdir(parents=True, exist_ok=True)
    if not PEERS[peer].installed().exists():
        PEERS[peer].fetch()
    if not PEERS[peer].installed().exists():
        raise PeerError(f"{PEERS[peer].installed()} is missing after it was fetched")
