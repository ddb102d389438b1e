"""The delay after errors of etcd."""

from __future__ import annotations

import pytest

from starlingmq.cluster.etcd.etcd_retry import EtcdRetry


def test_the_delay_doubles_with_each_error_up_to_the_longest_and_a_success_makes_it_short_again() -> None:
    retry = EtcdRetry(0.25, 2.0)
    assert retry.at == 0.0
    delays = []
    for now in (10.0, 20.0, 30.0, 40.0, 50.0):
        retry.failed(now)
        delays.append(retry.at - now)
    assert delays == pytest.approx([0.25, 0.5, 1.0, 2.0, 2.0])
    retry.succeeded()
    assert retry.at == pytest.approx(52.0)
    retry.failed(60.0)
    assert retry.at == pytest.approx(60.25)
