"""A link to another broker or cluster, as operators see it."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct

LinkState = Literal["connected", "connecting", "waiting", "idle", "paused", "done", "elsewhere"]


class LinkView(Struct, frozen=True):
    """``node`` is set in lists of several nodes."""

    name: str
    kind: Annotated[
        Literal["bridge", "link", "rule"],
        Meta(description="bridge: to a broker of any kind; link: to another StarlingMQ; rule: to the sink of a rule."),
    ]
    state: Annotated[
        LinkState,
        Meta(
            description="waiting: for the next attempt; idle: lazy, and no message waits; done: it was to connect "
            "once; elsewhere: another node carries it."
        ),
    ]
    server: Annotated[str, Meta(description="URL of the server that it was last connected to, or tried; empty: none.")]
    seconds: Annotated[
        float, Meta(description="How long it has been in this state; connecting and waiting count as one.")
    ]
    problem: Annotated[str, Meta(description="Why it could not connect, or lost its connection; empty: no problem.")]
    complaints: Annotated[list[str], Meta(description="Filters that one of the two brokers refused, and why.")]
    waiting: Annotated[int, Meta(description="Messages that wait for the other broker.")]
    waiting_bytes: int
    in_flight: Annotated[int, Meta(description="Messages sent to the other broker and not acknowledged yet.")]
    messages_out: Annotated[int, Meta(description="Messages to the other broker since the nodes started.")]
    messages_in: Annotated[int, Meta(description="Messages from the other broker since the nodes started.")]
    bytes_out: int
    bytes_in: int
    refused: Annotated[int, Meta(description="Messages that the receiving broker refused.")]
    kept_out: Annotated[
        int, Meta(description="Messages not carried: they had been there, or were too large, or have no topic there.")
    ]
    again: Annotated[int, Meta(description="Messages sent again after the other broker had lost its session.")]
    dropped: Annotated[
        int, Meta(description="Messages dropped for lack of room in the queue, or because they expired.")
    ]
    node: Annotated[str, Meta(description="The node that carries it; empty: no node that answered.")] = ""
    left: Annotated[
        int | None,
        Meta(
            description="Clients that are still connected to the other broker, which this one follows; null: unknown."
        ),
    ] = None
    moved: Annotated[int, Meta(description="Sessions that were moved from the other broker.")] = 0
