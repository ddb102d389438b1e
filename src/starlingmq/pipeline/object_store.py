"""Settings of Spark's S3 client for the other one, Arrow's, which the sink of topics uses beside its checkpoint.

Arrow's client takes them from the environment of its process, as S3A does with credentials that are not among its
settings.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

PREFIX: Final = "spark.hadoop.fs.s3a."
REGION: Final = "AWS_DEFAULT_REGION"
SAME: Final = {
    "access.key": "AWS_ACCESS_KEY_ID",
    "secret.key": "AWS_SECRET_ACCESS_KEY",
    "session.token": "AWS_SESSION_TOKEN",
    "endpoint.region": REGION,
}
ENDPOINT: Final = "AWS_ENDPOINT_URL"


def arrow_environment(settings: Mapping[str, str]) -> dict[str, str]:
    """``settings``: of Spark."""
    given = {name.removeprefix(PREFIX): value for name, value in settings.items() if name.startswith(PREFIX)}
    found = {variable: given[name] for name, variable in SAME.items() if name in given}
    endpoint = given.get("endpoint", "")
    if endpoint:
        plain = given.get("connection.ssl.enabled", "true").lower() == "false"
        found.setdefault(REGION, "us-east-1")  # as S3A has it; without one Arrow asks Amazon for the bucket's
        found[ENDPOINT] = endpoint if "://" in endpoint else f"{'http' if plain else 'https'}://{endpoint}"
    return found
