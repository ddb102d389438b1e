"""``starlingmq pipeline infer``: the decode part of a pipeline file, by a sample of the stream."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Annotated

import msgspec
import typer

from starlingmq.cli.declare import CommandError
from starlingmq.cli.pipeline_jobs import SourceArgs, TopicsOption


@dataclass(kw_only=True)
class InferArgs(SourceArgs):
    stream: Annotated[str, typer.Argument(metavar="STREAM", help="Stream name.")]
    topics: TopicsOption = None
    rows: Annotated[int, typer.Option("--rows", min=1, max=100_000, help="Rows to look at.")] = 1000


def infer(args: InferArgs) -> int:
    """Recognize the payloads of a stream, and print the decode part of a pipeline file."""
    config = args.config("infer", args.stream, args.topics)
    try:
        from starlingmq.pipeline.inference import as_yaml
        from starlingmq.pipeline.inference import infer as recognize
        from starlingmq.pipeline.stream_sample import take_sample
    except ImportError as error:
        raise CommandError(f"pipeline needs {error.name}; install the extra [spark] (docs/DEPLOY.md)") from None
    found, total = take_sample(config, "infer", args.rows)
    result = recognize(found)
    if args.json_:
        print(json.dumps({**msgspec.structs.asdict(result), "rows": total}))
        return 0
    print(f"# {len(found):,} of {total:,} rows of stream {args.stream}; {result.fits:,} fit")
    print(as_yaml(result), end="")
    return 0
