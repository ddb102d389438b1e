"""Envelopes with any body, drawn by hypothesis."""

from __future__ import annotations

from hypothesis import strategies as st

from starlingmq.cluster.links import control_frames, peer_frames, record_bytes

numbers = st.integers(0, 2**63 - 1)
by_node = st.dictionaries(numbers, numbers, max_size=4)
values = st.integers(0, 2**32 - 1)
records = st.lists(st.builds(record_bytes.RouteRecord, st.binary(max_size=20), values), max_size=4).map(
    record_bytes.PackedRecords
)
members = st.builds(
    control_frames.MemberInfo, st.text(max_size=9), numbers, numbers, st.text(), st.text(), st.booleans()
)
memberships = st.builds(control_frames.Membership, numbers, st.lists(members, max_size=4).map(tuple))
names = st.text(st.characters(exclude_categories=["Cs"]), max_size=9)
ids = st.integers(1, 65535)
allotments = st.builds(control_frames.Allotment, numbers, numbers, numbers, numbers)
pulls = st.builds(
    control_frames.Pull, st.binary(max_size=20), numbers, st.lists(allotments, max_size=3).map(tuple), st.booleans()
)
states = st.builds(
    control_frames.GroupState,
    st.binary(max_size=20),
    numbers,
    numbers,
    numbers,
    numbers,
    st.lists(st.tuples(numbers, numbers), max_size=3).map(tuple),
    st.booleans(),
)
bodies: st.SearchStrategy[peer_frames.Body] = st.one_of(
    st.builds(
        control_frames.Heartbeat,
        epoch=numbers,
        version=numbers,
        vector=st.dictionaries(numbers, st.tuples(numbers, numbers), max_size=4),
        heard=by_node,
        relayed=by_node,
        connected=st.frozensets(numbers, max_size=4),
        serving=st.booleans(),
        membership=memberships,
        number=numbers,
        taken=by_node,
        listeners=st.lists(st.text(max_size=9), max_size=3).map(tuple),
        draining=st.booleans(),
        clients=numbers,
        retained=numbers,
        gone=by_node,
        since=numbers,
        changed=st.lists(numbers, max_size=3).map(tuple),
    ),
    st.builds(
        peer_frames.RouteRecords,
        numbers,
        numbers,
        records,
        st.lists(st.tuples(numbers, numbers), max_size=3).map(tuple),
        st.booleans(),
    ),
    st.builds(peer_frames.RouteApplied, numbers, numbers, numbers),
    st.builds(control_frames.SyncRequest, numbers, numbers, numbers),
    st.builds(control_frames.RouteSnapshot, numbers, numbers, numbers, st.booleans(), records, numbers),
    st.builds(peer_frames.Data, numbers, numbers, st.binary(max_size=300)),
    st.builds(peer_frames.DataAck, numbers, numbers),
    st.builds(
        control_frames.HandshakeCall,
        numbers,
        st.lists(st.tuples(names, ids, numbers, numbers, st.integers(-1, 2**63 - 1)), max_size=3).map(tuple),
    ),
    st.builds(
        control_frames.HandshakeReply,
        numbers,
        numbers,
        st.lists(st.tuples(st.integers(0, 3), numbers, numbers), max_size=3).map(tuple),
    ),
    st.builds(control_frames.GroupPull, numbers, st.lists(pulls, max_size=3).map(tuple)),
    st.builds(control_frames.GroupReport, numbers, st.lists(states, max_size=3).map(tuple)),
    st.builds(control_frames.OperatorCall, numbers, st.binary(max_size=300)),
    st.builds(control_frames.OperatorReply, numbers, st.binary(max_size=300)),
    st.builds(peer_frames.ShareFrame, numbers, numbers, numbers, st.binary(max_size=300), st.binary(max_size=300)),
)
envelopes = st.builds(peer_frames.Envelope, numbers, numbers, numbers, numbers, bodies, st.booleans())
