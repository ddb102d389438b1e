"""Kafka's clients, each with a thread of its own: no call of theirs blocks the event loop.

Records and reports go from a thread to the loop in batches. Bounds: the writer has the messages that the session of the
bridge has in flight; the reader at most two batches beyond the room it was given, and librdkafka ``FETCH_KIB``.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable
from typing import Any, Final

from starlingmq.bridges.kafka_records import Headers
from starlingmq.bridges.kafka_state import NONE, Partition, Sent, first_offset

try:
    from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
except ImportError as error:
    raise ImportError(f"its client is not installed ({error}): pip install 'starlingmq[kafka]'") from None

log = logging.getLogger("starlingmq")

POLL_SECONDS: Final = 0.1
ASK_SECONDS: Final = 20.0  # for metadata and offsets
DOUBT_SECONDS: Final = 5.0  # for an answer of any broker, once none seems to be there
STOP_SECONDS: Final = 3.0
COMMIT_SECONDS: Final = 1.0
LOOK_SECONDS: Final = 10.0  # between two looks for new topics and partitions
BATCH: Final = 200  # records
BATCH_BYTES: Final = 65_536  # of records for a partition; larger ones go alone, so they are refused alone
BATCH_COUNT: Final = 10_000
DELIVERY_MS: Final = 120_000  # after which Kafka is taken for dead
FETCH_KIB: Final = 16_384
LARGEST: Final = 1_000_000_000
SOON: Final = (
    KafkaError.NOT_COORDINATOR,
    KafkaError.COORDINATOR_NOT_AVAILABLE,
    KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
)  # errors of a Kafka that has just started
NEVER: Final = (KafkaError.MSG_SIZE_TOO_LARGE, KafkaError.INVALID_RECORD, KafkaError.INVALID_MSG)


class KafkaClient:
    """``ended`` is called in the event loop, with the problem, when the client is of no use any more."""

    def __init__(self, settings: dict[str, Any], ended: Callable[[str], None]) -> None:
        self.settings = {
            **settings,
            "error_cb": self._error,
            "logger": log,
            "log_level": 2,  # the others come as errors
            "socket.keepalive.enable": True,
        }
        self._loop = asyncio.get_running_loop()
        self.greeted: asyncio.Future[str] = self._loop.create_future()  # the site that Kafka is
        self._ended = ended
        self._stopping = threading.Event()
        self._doubted = False  # no broker answers, as it seems
        self._last_error = ""
        self._thread = threading.Thread(target=self._run, name="kafka", daemon=True)

    def begin(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Of the event loop: nothing is called there any more."""
        self._stopping.set()

    async def stopped(self) -> None:
        if self._thread.is_alive():
            await asyncio.to_thread(self._thread.join, STOP_SECONDS)

    def tell(self, call: Callable[..., None], *what: Any) -> None:
        """Call it in the event loop."""

        def unless_stopped() -> None:
            if not self._stopping.is_set():
                call(*what)

        try:
            self._loop.call_soon_threadsafe(unless_stopped)
        except RuntimeError:  # the loop is closed
            self._stopping.set()

    def _run(self) -> None:
        try:
            self.serve()
        except KafkaException as error:
            self.tell(self._fail, self._last_error or error.args[0].str())
        except Exception:
            log.exception("internal error in a bridge to Kafka; please report it")
            self.tell(self._fail, "internal error")
        self._stopping.wait()  # the event loop may use the client until then
        self.release()

    def release(self) -> None:
        """Of the thread, at the end: drop the client, which may wait for long then, such as for an address."""

    def serve(self) -> None:
        """The life of the client, in its thread. Raises KafkaException."""
        raise NotImplementedError

    def greet(self, client: Any) -> None:
        end = time.monotonic() + ASK_SECONDS
        while not self._stopping.is_set():
            try:
                cluster_id = client.list_topics(timeout=DOUBT_SECONDS).cluster_id
            except KafkaException:
                client.poll(0)  # for the errors that say why
                if self._last_error or time.monotonic() > end:
                    raise
            else:
                self.tell(self._greeted, f"kafka:{cluster_id}")
                return

    def _greeted(self, site: str) -> None:
        if not self.greeted.done():
            self.greeted.set_result(site)

    def look(self, client: Any) -> None:
        """Make sure that Kafka is there, if that is doubtful."""
        if self._doubted:
            client.list_topics(timeout=DOUBT_SECONDS)
            self._doubted = False

    def _fail(self, problem: str) -> None:
        if self.greeted.done():
            self._ended(problem)
        else:
            self.greeted.set_exception(ConnectionError(problem))

    def _error(self, error: Any) -> None:
        """Called by librdkafka, in the thread."""
        if error.code() == KafkaError._ALL_BROKERS_DOWN:
            self._doubted = True
        else:
            self._last_error = error.str()
        if error.fatal() or error.code() == KafkaError._AUTHENTICATION:
            self.tell(self._fail, error.str())


class KafkaWriter(KafkaClient):
    """An idempotent producer. ``reported`` is called in the event loop with messages that are done, and whether Kafka
    has stored each."""

    def __init__(
        self,
        settings: dict[str, Any],
        ended: Callable[[str], None],
        reported: Callable[[list[tuple[Sent, bool]]], None],
        alone: bool = False,
    ) -> None:
        """``alone``: each record in a batch of its own."""
        super().__init__(settings, ended)
        self.alone = alone
        self.batch_refused = False  # by Kafka, and it is not known which records were the reason
        self._reported = reported
        self._reports: list[tuple[Sent, bool]] = []
        own = {
            "enable.idempotence": True,  # with it acks=all, and the order of each partition through all retries
            "max.in.flight.requests.per.connection": 5,
            "message.timeout.ms": DELIVERY_MS,
            "partitioner": "murmur2_random",  # as Kafka's own clients have it
            "batch.size": BATCH_BYTES,
            "batch.num.messages": 1 if alone else BATCH_COUNT,
            "message.max.bytes": LARGEST,
            "queue.buffering.max.messages": 0,  # no bound here
            "queue.buffering.max.kbytes": 2_097_151,
        }
        # Made here and not in the thread: the loop calls ``produce``.
        try:
            self._producer: Any = Producer({**self.settings, **own})
        except (KafkaException, ValueError) as error:  # such as for a file of TLS that is not there
            raise ConnectionError(str(error)) from None

    def write(self, sent: Sent, topic: str, key: bytes, value: bytes | None, headers: Headers) -> bool:
        """Of the event loop. Returns whether it may become a record. Raises KafkaException, BufferError."""

        def report(error: Any, _message: Any) -> None:
            if error is None:
                self._reports.append((sent, True))
            elif error.code() in NEVER and (self.alone or sent.size > BATCH_BYTES):
                self._reports.append((sent, False))
            elif not self._stopping.is_set():
                self.batch_refused = self.batch_refused or error.code() in NEVER
                self.tell(self._fail, f"topic {topic}: {error.str()}")

        try:
            self._producer.produce(topic, value, key, on_delivery=report, headers=headers)
        except KafkaException as error:
            if error.args[0].code() not in NEVER:
                raise
            return False
        return True

    def serve(self) -> None:
        producer = self._producer
        self.greet(producer)
        while not self._stopping.is_set():
            producer.poll(POLL_SECONDS)
            reports = self._reports
            if reports:
                self._reports = []
                self.tell(self._reported, reports)
            self.look(producer)
        producer.purge(in_queue=True, in_flight=True, blocking=False)
        producer.poll(0)

    def release(self) -> None:
        self._producer = None


class KafkaReader(KafkaClient):
    """A consumer of all partitions of some topics, without a group's balancing: one node carries the bridge. ``came``
    is called in the event loop with records, ``placed`` with each partition that is read from now on, its position and
    what is wrong with it. ``node`` stands for this node among those that commit offsets."""

    def __init__(
        self,
        settings: dict[str, Any],
        ended: Callable[[str], None],
        topics: list[str],
        node: str,
        came: Callable[[list[Any]], None],
        placed: Callable[[Partition, int, str], None],
    ) -> None:
        super().__init__(settings, ended)
        self.room = threading.Event()  # for more records
        self.begun = threading.Event()  # ``own`` and ``positions`` may be called
        self.own: Callable[[Partition], int] = lambda _partition: 0  # the position of this node
        self.positions: Callable[[], dict[Partition, int]] = dict  # up to where all is stored here
        self._topics = topics
        self._node = node
        self._came = came
        self._placed = placed
        self._committed: dict[Partition, int] = {}
        self._uncommitted = ""  # why, as it was logged last
        self._known: set[Partition] = set()

    def serve(self) -> None:
        own = {
            "group.id": self.settings["client.id"],
            "allow.auto.create.topics": False,
            "isolation.level": "read_committed",
            "max.poll.interval.ms": 86_400_000,  # this broker may accept nothing for long
            "enable.auto.commit": False,
            "enable.auto.offset.store": False,
            "auto.offset.reset": "error",
            "queued.max.messages.kbytes": FETCH_KIB,
            "fetch.message.max.bytes": 1024 * FETCH_KIB // 4,
        }
        consumer = Consumer({**self.settings, **own})
        try:
            self.greet(consumer)
            while not self.begun.wait(POLL_SECONDS) and not self._stopping.is_set():
                pass
            if self.begun.is_set():
                self._read(consumer)
                self._commit(consumer)
        finally:
            consumer.close()

    def _read(self, consumer: Any) -> None:
        look = commit = 0.0
        while not self._stopping.is_set():
            now = time.monotonic()
            if now >= look:
                look = now + (LOOK_SECONDS if self._place(consumer) else COMMIT_SECONDS)
            if now >= commit:
                commit = now + COMMIT_SECONDS
                self._commit(consumer)
            self.look(consumer)
            if not self.room.wait(POLL_SECONDS):
                continue
            records = consumer.consume(BATCH, POLL_SECONDS)
            for record in records:
                if record.error() is not None:
                    raise KafkaException(record.error())
            if records:
                self.room.clear()
                self.tell(self._came, records)

    def _place(self, consumer: Any) -> bool:
        """Find partitions that are not read yet, and where to begin. False if that is to be tried again soon."""
        found: list[Partition] = []
        for name in self._topics:
            described = consumer.list_topics(name, timeout=ASK_SECONDS).topics[name]
            if described.error is not None:
                self.tell(self._placed, (name, NONE), NONE, described.error.str())
            found += [(name, number) for number in described.partitions if (name, number) not in self._known]
        if not found:
            return True
        begins: list[Any] = []
        try:
            committed = consumer.committed([TopicPartition(*each) for each in found], timeout=ASK_SECONDS)
        except KafkaException as error:
            if error.args[0].code() not in SOON:
                raise
            return False
        for partition, at in zip(found, committed, strict=True):
            if at.error is not None:
                raise KafkaException(at.error)
            low, high = consumer.get_watermark_offsets(TopicPartition(*partition), timeout=ASK_SECONDS)
            offset = at.offset if at.offset >= 0 else NONE
            begin, problem = first_offset(self.own(partition), offset, at.metadata == self._node, low, high)
            self._known.add(partition)
            self.tell(self._placed, partition, begin, problem)
            if begin != NONE:
                begins.append(TopicPartition(*partition, begin))
        consumer.incremental_assign(begins)
        return True

    def _commit(self, consumer: Any) -> None:
        moved = {each: at for each, at in self.positions().items() if self._committed.get(each) != at}
        if moved:
            places = [TopicPartition(*each, at, self._node) for each, at in moved.items()]
            try:
                consumer.commit(offsets=places, asynchronous=False)
            except KafkaException as error:
                why = error.args[0].str()
                if why != self._uncommitted:
                    self._uncommitted = why
                    log.info("bridge to Kafka: no offset is committed now: %s", why)
                return
            self._committed.update(moved)
            self._uncommitted = ""
