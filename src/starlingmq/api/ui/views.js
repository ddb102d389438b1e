// Views that are drawn anew from what the broker says each time: (overview, parameters) to what is shown.

import {api, ask, card, el, facts, goneFor, heading, maybe, missing, nodeColumn, number, plot, sessionLink, table} from "./base.js";
import {nodes} from "./map.js";
import {Rates} from "./rates.js";

const rates = new Rates();
const MEASURED = {turn: "Event loop turn", delivery: "Delivery delay", commit: "Commit", fsync: "Fsync", lag: "Event loop lag"};
const WAITED = ["commit", "fsync"]; // only for what waits for the disk: not with durability process, nor without a directory
const said = (value) => (value === true ? "yes" : value === false ? "no" : value === null || value === "" ? "–" : String(value));

export async function overview(seen) {
  const latencies = Object.entries(seen.latency).filter(([name, one]) => one.count || !WAITED.includes(name));
  const told = await maybe("/cluster/overview");
  const others = (told?.nodes ?? []).filter((one) => one.node !== seen.node);
  const all = [seen, ...others];
  rates.note(all);
  const summed = (pick) => all.reduce((sum, one) => sum + pick(one), 0);
  const dropped = {};
  for (const one of all) for (const [reason, count] of Object.entries(one.dropped)) dropped[reason] = (dropped[reason] ?? 0) + count;
  const slowest = all.flatMap((one) => one.slowest.map((slow) => ({node: others.length ? one.node : "", ...slow})));
  slowest.sort((a, b) => b.queued - a.queued);
  const rate = (one, name) => number(rates.now.get(one.node)?.[name] ?? 0);
  const gone = seen.cluster?.gone ?? [];
  const members = Math.max(seen.cluster?.members ?? 1, all.length);
  const where = members > all.length ? `, ${all.length} of ${members} nodes` : others.length ? `, all ${all.length} nodes` : "";
  const alive = (show) => (one) => (one.gone ? "–" : show(one));
  return [
    missing(told),
    el("div", {class: "cards wide"},
      plot("Messages in per second" + where, rates.history.in, "/s"), plot("Messages out per second" + where, rates.history.out, "/s"),
      plot("Dropped per second" + where, rates.history.dropped, "/s")),
    heading("Now" + where),
    el("div", {class: "cards"}, ...Object.keys(seen.holds).map((name) => card(name.replace("_", " "),
      number(name === "retained" ? seen.holds[name] : summed((one) => one.holds[name] ?? 0))))),
    ...(members > 1 ? [heading("Nodes"), table({node: (one) => one.node, clients: alive((one) => number(one.holds.clients)),
      "in/s": alive((one) => rate(one, "in")), "out/s": alive((one) => rate(one, "out")), queued: alive((one) => number(one.holds.queued)),
      dropped: alive((one) => number(one.totals.dropped)), "turn p99 (ms)": alive((one) => one.latency.turn.p99_ms),
      state: (one) => (one.gone ? el("span", {class: "bad"}, goneFor(one.gone)) : one.ready.reasons.join("; ") || "serving")},
      [...all, ...gone.filter((one) => !all.some((other) => other.node === one.name)).map((one) => ({node: one.name, gone: one}))])] : []),
    heading("Latency of " + seen.node),
    el("div", {class: "cards wide"}, ...latencies.map(([name]) => plot((MEASURED[name] ?? name) + ", mean", rates.latency[name] ?? [], " ms"))),
    table({"": ([name]) => MEASURED[name] ?? name, count: ([, one]) => number(one.count), "mean (ms)": ([, one]) => one.mean_ms,
      "p50 (ms)": ([, one]) => one.p50_ms, "p99 (ms)": ([, one]) => one.p99_ms}, latencies),
    heading("Dropped, by reason"),
    table({reason: ([name]) => name, messages: ([, count]) => number(count)}, Object.entries(dropped).sort((a, b) => b[1] - a[1])),
    heading("Slow subscribers"),
    table({client: (one) => sessionLink(one.client_id), ...nodeColumn(slowest), waiting: (one) => number(one.queued)}, slowest.slice(0, 10)),
  ];
}

function list(path, key, columns, search = true) {
  return async (seen, parameters) => {
    const page = await api(path, parameters);
    const there = new URLSearchParams(location.hash.split("?")[1]);
    const go = (changes) => { location.hash = location.hash.split("?")[0] + "?" + new URLSearchParams(changes); };
    const field = el("input", {type: "search", placeholder: "client id contains", value: there.get("q") || "", "aria-label": "Search",
      onchange: (event) => go(event.target.value ? {q: event.target.value} : {})});
    const more = page.next ? el("button", {onclick: () => go({...Object.fromEntries(there), cursor: page.next})}, "Next page") : "";
    const first = there.get("cursor") ? el("button", {onclick: () => go({})}, "First page") : "";
    return [el("div", {class: "tools"}, search ? field : "", first, more), missing(page),
      table({...columns, ...nodeColumn(page[key])}, page[key])];
  };
}

async function session(seen, parameters) {
  const one = await api("/session", parameters);
  const name = one.session.client_id;
  const button = (text, method, path, after) => el("button", {class: "bad", onclick: async () => {
    if (!confirm(`${text}: ${name}?`)) return;
    await ask(method, path, {client_id: name});
    location.hash = after;
    dispatchEvent(new Event("hashchange"));
  }}, text);
  return [
    heading("Session of " + name),
    el("div", {class: "tools"}, el("a", {href: "#trace?" + new URLSearchParams({client_id: name})}, "Trace"),
      one.client ? button("Disconnect", "DELETE", "/api/v1/client", location.hash) : "",
      button("End session", "DELETE", "/api/v1/session", "#sessions")),
    facts([...Object.entries(one.session), ...Object.entries(one.client || {}).filter(([key]) => !(key in one.session))]
      .filter(([key]) => key !== "client_id" && (key !== "node" || one.node)).map(([key, value]) => [key.replaceAll("_", " "), said(key === "node" ? one.node : value)])),
    heading("Subscriptions"), table({filter: (s) => s.filter, qos: (s) => s.qos}, one.subscriptions),
    heading("In flight"),
    table({id: (w) => w.packet_id, qos: (w) => w.qos, stage: (w) => w.stage, topic: (w) => w.topic ?? "(stored)", bytes: (w) => number(w.size),
      sent: (w) => w.sent_at}, one.window),
    heading("Queue"), table({topic: (q) => q.topic ?? "(stored)", qos: (q) => q.qos, bytes: (q) => number(q.size)}, one.queue),
  ];
}

async function message(seen, parameters) {
  const one = await api("/retained/message", parameters);
  return [heading(one.topic), el("p", {}, `QoS ${one.qos}, ${number(one.size)} bytes, by ${one.publisher || "the broker"} at ${one.published_at}`),
    el("pre", {}, one.payload ?? one.payload_base64)];
}

async function streams() {
  const told = await api("/streams");
  const readers = told.streams.flatMap((one) => one.consumers.map((reader) => ({...reader, stream: one.name, node: one.node})));
  return [missing(told), heading("Streams"),
    table({stream: (s) => s.name, ...nodeColumn(told.streams), topics: (s) => (s.topics ?? []).join(", "), messages: (s) => number(s.messages),
      bytes: (s) => number(s.bytes), full: (s) => (s.full ? "yes" : ""), dropped: (s) => number(s.dropped)}, told.streams),
    heading("Pipelines and other readers"),
    table({reader: (r) => r.name, stream: (r) => r.stream, ...nodeColumn(readers), "lag (messages)": (r) => number(r.lag),
      "last heard (s ago)": (r) => number(r.heard_seconds ?? 0), "pins retention": (r) => (r.pins ? "yes" : "")}, readers)];
}

export const VIEWS = {
  overview: {title: "Overview", show: overview},
  clients: {title: "Clients", show: list("/clients", "clients", {client: (c) => sessionLink(c.client_id), user: (c) => c.username,
    from: (c) => c.peer, protocol: (c) => c.protocol, subscriptions: (c) => number(c.subscriptions), queued: (c) => number(c.queued),
    "in flight": (c) => number(c.inflight), dropped: (c) => number(c.dropped), slow: (c) => (c.slow ? "yes" : "")})},
  sessions: {title: "Sessions", show: list("/sessions", "sessions", {client: (s) => sessionLink(s.client_id),
    connected: (s) => (s.connected ? "yes" : "no"), subscriptions: (s) => number(s.subscriptions), queued: (s) => number(s.queued),
    "in flight": (s) => number(s.inflight), dropped: (s) => number(s.dropped), expires: (s) => s.expires_at})},
  retained: {title: "Retained", show: list("/retained", "retained", {
    topic: (r) => el("a", {href: "#message?" + new URLSearchParams({topic: r.topic})}, r.topic), qos: (r) => r.qos,
    bytes: (r) => number(r.size), from: (r) => r.publisher, at: (r) => r.published_at}, false)},
  groups: {title: "Groups", show: list("/groups", "groups", {group: (g) => g.name, filter: (g) => g.filter, strategy: (g) => g.strategy,
    primary: (g) => g.primary, "members on this node": (g) => `${g.online_here} of ${g.members_here}`,
    "members elsewhere": (g) => Object.entries(g.nodes).map(([name, n]) => `${name}: ${number(n.members)}`).join(", "),
    waiting: (g) => number(g.waiting_here), lag: (g) => number(g.lag), delivered: (g) => number(g.given), redelivered: (g) => number(g.redelivered)}, false)},
  streams: {title: "Streams", show: streams},
  nodes: {title: "Cluster", show: nodes},
  session: {show: session},
  message: {show: message},
};
