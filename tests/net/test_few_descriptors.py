"""A real broker with few file descriptors: silent connections take those of clients, and nothing of the rest fails."""

from __future__ import annotations

import asyncio
import resource
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from urllib.parse import urlsplit
from urllib.request import urlopen

import pytest

from starlingmq.wire.codec import Connack, Connect, Puback, Publish, Suback, Subscribe, Subscription, encode
from tests.embedding.peer import Peer
from tests.patience import patience

from .conftest import Certificates

LIMIT = 192
FLOOD = 300
