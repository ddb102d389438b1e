"""The rights of a client that sends a request to the API: they are checked here, at the node of the client, before the
request is answered or passed on.

- Streams are read by those who may (``allow: stream``).
- A stream keeps only what its maker may subscribe to: else that client would read there what it may not receive.
- A stream sends again, or keeps under another subject, only what its maker may publish.
- A consumer sends only where its maker may publish. Inboxes are its own if it may subscribe to them.
"""

from __future__ import annotations

from typing import Final

from starlingmq.core.limits.access import WHOLE, Rights
from starlingmq.jetstream import consumer_api, message_api, stream_api
from starlingmq.jetstream import json_forms as forms
from starlingmq.jetstream import stream_config as configs
from starlingmq.jetstream.api_requests import Api, ApiRequest, NotAllowedError
from starlingmq.jetstream.consumer_config import ConsumerRequest
from starlingmq.jetstream.stream_config import StreamRequest
from starlingmq.jetstream.subjects import topic_or_none

INBOX: Final = b"_INBOX"
MAKING: Final = (consumer_api.create, consumer_api.create_durable)
READING: Final = (*MAKING, message_api.direct_get, consumer_api.next_message, message_api.get)


def check_rights(api: Api, handler: object, names: list[str], request: ApiRequest) -> None:
    """Raises NotAllowedError; ApiError if the request cannot be read."""
    rights = request.rights
    if rights is None:
        return
    if handler in READING and not rights.may_read(names[0].encode()):
        raise NotAllowedError
    if handler in MAKING:
        subject = forms.parsed(request.payload, ConsumerRequest).config.deliver_subject
        if subject and not _may_send(rights, topic_or_none(subject) or b""):
            raise NotAllowedError
    if handler is stream_api.update or (handler is stream_api.create and not api.exists(names[0])):
        config = forms.parsed(request.payload, StreamRequest)
        configs.check_stream(config)
        if not all(rights.extent(filter, b"") == WHOLE for filter in configs.stream_policy(config).subjects):
            raise NotAllowedError
        for source in configs.stream_policy(config).sources:
            if not rights.may_read(source.name.encode()):
                raise NotAllowedError
            if not all(rights.may_publish_all(each.made()) for each in source.transforms):
                raise NotAllowedError
        republishing = configs.stream_policy(config).republishing
        if republishing is not None:
            for transform in (republishing.transform, republishing.republish):
                if transform is not None and not rights.may_publish_all(transform.made()):
                    raise NotAllowedError


def _may_send(rights: Rights, topic: bytes) -> bool:
    return rights.may_publish(topic, 0, False) or (topic.startswith(INBOX) and rights.extent(topic, b"") == WHOLE)
