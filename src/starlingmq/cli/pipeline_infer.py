"""``starlingmq pipeline infer``: the decode part of a pipeline file, by a sample of the stream."""

from __future__ import annotations

import json
from typing import Annotated

import msgspec
import typer

from starlingmq.cli.control import JsonOption
from starlingmq.cli.declare import CommandError
from starlingmq.cli.pipeline_jobs import (
    CaOption,
    ExcludeOption,
    NodeTimeoutOption,
    PasswordOption,
    ServerOption,
    TokenOption,
    TopicsOption,
    UserOption,
    config_of,
)


def infer(
    stream: Annotated[str, typer.Argument(metavar="STREAM", help="Stream name.")],
    server: ServerOption = None,
    token_file: TokenOption = "",
    user: UserOption = "",
    password_file: PasswordOption = "",
    tls_ca: CaOption = "",
    node_timeout: NodeTimeoutOption = 30,
    excluded_nodes: ExcludeOption = None,
    topics: TopicsOption = None,
    rows: Annotated[int, typer.Option("--rows", min=1, max=100_000, help="Rows to look at.")] = 1000,
    json_: JsonOption = False,
) -> None:
    """Recognize the payloads of a stream, and print the decode part of a pipeline file."""
    config = config_of(
        "infer", server, stream, token_file, user, password_file, tls_ca, node_timeout, topics, excluded_nodes
    )
    try:
        from starlingmq.pipeline.inference import as_yaml
        from starlingmq.pipeline.inference import infer as recognize
        from starlingmq.pipeline.stream_sample import take_sample
    except ImportError as error:
        raise CommandError(f"pipeline needs {error.name}; install the extra [spark] (docs/DEPLOY.md)") from None
    found, total = take_sample(config, "infer", rows)
    result = recognize(found)
    if json_:
        print(json.dumps({**msgspec.structs.asdict(result), "rows": total}))
        return
    print(f"# {len(found):,} of {total:,} rows of stream {stream}; {result.fits:,} fit")
    print(as_yaml(result), end="")
