// The overview: charts of the last hour, which the brokers keep themselves, and the state of now.

import {api, card, el, goneFor, heading, maybe, missing, nodeColumn, number, sessionLink, table} from "./base.js";
import {Chart, bytes} from "./chart.js";
import {language, named, t} from "./language.js";

const MEASURED = Object.fromEntries(["turn", "delivery", "commit", "fsync", "lag"].map((one) => [one, t("latency." + one)]));
const WAITED = ["commit", "fsync"]; // only for what waits for the disk: not with durability process, nor without a directory
const TIMES = {300: t("time.5min"), 900: t("time.15min"), 3600: t("time.hour")};
const POINTS = 120;
const HISTORY_MS = 4000;

const perSecond = (value) => number(value) + "/s";
const inBytes = (value) => bytes(value) + "/s";
const ms = (value) => Number(value).toLocaleString(language, {maximumSignificantDigits: 3}) + " ms";
const percent = (value) => number(value * 100) + " %";
const CHARTS = {
  in: [t("chart.in"), perSecond], out: [t("chart.out"), perSecond], dropped: [t("chart.dropped"), perSecond],
  clients: [t("tab.clients"), number], queued: [t("chart.queued"), number], connections: [t("chart.connections"), perSecond],
  bytes_in: [t("chart.bytes_in"), inBytes, 1024], bytes_out: [t("chart.bytes_out"), inBytes, 1024], cpu: [t("chart.cpu"), percent], memory: [t("chart.memory"), bytes, 1024],
};
const OF_ONE = {turn: "turn_ms", delivery: "delivery_ms", commit: "commit_ms", fsync: "fsync_ms"}; // latencies are not summed

const EVERYWHERE = ["retained", "groups"]; // each node knows all of them

const charts = new Map();
let seconds = 900;
let history = null;
let asked = -Infinity;

function chart(name, title, say, base) {
  if (!charts.has(name)) charts.set(name, new Chart(title, say, base));
  return charts.get(name);
}

const chosen = el("select", {"aria-label": t("overview.time"), name: "time", onchange: () => {
  seconds = Number(chosen.value);
  asked = -Infinity;
  dispatchEvent(new Event("hashchange"));
}}, ...Object.entries(TIMES).map(([value, text]) => el("option", {value, selected: value === "900" ? "" : false}, text)));
const tools = el("div", {class: "tools"}, el("label", {}, t("overview.last"), " ", chosen));
const traffic = el("div", {class: "cards wide"});
const latency = el("div", {class: "cards wide"});

// Where a node that has not run for so long begins; there is always room for the first minute.
function begins(values) {
  const first = values.findIndex((value) => value !== null);
  return Math.min(first < 0 ? values.length : first, Math.max(values.length - 12, 0));
}

async function draw(node, latencies) {
  if (performance.now() - asked > HISTORY_MS) {
    asked = performance.now();
    history = await api("/history", {seconds, points: POINTS});
  }
  const {end, step, nodes} = history;
  const first = Math.min(...Object.values(nodes).map((one) => begins(one.memory)));
  const of = (name, names) => Object.fromEntries(names.filter((one) => nodes[one]?.[name]).map((one) => [one, nodes[one][name].slice(first)]));
  for (const [name, [title, say, base]] of Object.entries(CHARTS)) chart(name, title, say, base).show(end, step, of(name, Object.keys(nodes)));
  const above = Object.keys(CHARTS).map((name) => charts.get(name).node);
  if (traffic.childElementCount !== above.length) traffic.replaceChildren(...above);
  const below = latencies.filter(([name]) => OF_ONE[name]).map(([name]) => {
    const one = chart(OF_ONE[name], t("latency.mean", {name: MEASURED[name]}), ms);
    one.show(end, step, of(OF_ONE[name], [node]));
    return one.node;
  });
  if (latency.childElementCount !== below.length) latency.replaceChildren(...below);
  return (one, name) => number(nodes[one]?.[name]?.findLast((value) => value !== null) ?? 0);
}

export async function overview(seen) {
  const latencies = Object.entries(seen.latency).filter(([name, one]) => one.count || !WAITED.includes(name));
  const told = await maybe("/cluster/overview");
  const rate = await draw(seen.node, latencies);
  const others = (told?.nodes ?? []).filter((one) => one.node !== seen.node);
  const all = [seen, ...others];
  const summed = (pick) => all.reduce((sum, one) => sum + pick(one), 0);
  const dropped = {};
  for (const one of all) for (const [reason, count] of Object.entries(one.dropped)) dropped[reason] = (dropped[reason] ?? 0) + count;
  const slowest = all.flatMap((one) => one.slowest.map((slow) => ({node: others.length ? one.node : "", ...slow})));
  slowest.sort((a, b) => b.queued - a.queued);
  const gone = seen.cluster?.gone ?? [];
  const lost = new Map(gone.map((one) => [one.name, one]));
  const members = Math.max(seen.cluster?.members ?? 1, all.length);
  const there = all.filter((one) => !lost.has(one.node)).length; // another node may answer for one that is gone
  const where = members > there ? "overview.some" : others.length ? "overview.all" : "overview.now";
  const alive = (show) => (one) => (one.gone ? "–" : show(one));
  return [
    missing(told),
    heading(t(where, {count: there, members})),
    el("div", {class: "cards"}, ...Object.keys(seen.holds).map((name) => card(named("holds." + name, name.replace("_", " ")),
      number(EVERYWHERE.includes(name) ? Math.max(...all.map((one) => one.holds[name] ?? 0)) : summed((one) => one.holds[name] ?? 0))))),
    ...(members > 1 ? [heading(t("overview.nodes")), table({node: (one) => one.node, clients: alive((one) => number(one.holds.clients)),
      "in/s": alive((one) => rate(one.node, "in")), "out/s": alive((one) => rate(one.node, "out")), queued: alive((one) => number(one.holds.queued)),
      dropped: alive((one) => number(one.totals.dropped)), "turn p99 (ms)": alive((one) => one.latency.turn.p99_ms),
      state: (one) => (lost.has(one.node) ? el("span", {class: "bad"}, goneFor(lost.get(one.node))) : one.ready.reasons.join("; ") || t("serving"))},
      [...all, ...gone.filter((one) => !all.some((other) => other.node === one.name)).map((one) => ({node: one.name, gone: one}))])] : []),
    tools,
    traffic,
    heading(t("overview.latency", {node: seen.node})),
    latency,
    table({measured: ([name]) => MEASURED[name] ?? name, count: ([, one]) => number(one.count), "mean (ms)": ([, one]) => one.mean_ms,
      "p50 (ms)": ([, one]) => one.p50_ms, "p99 (ms)": ([, one]) => one.p99_ms}, latencies),
    heading(t("overview.dropped")),
    table({reason: ([name]) => name, messages: ([, count]) => number(count)}, Object.entries(dropped).sort((a, b) => b[1] - a[1])),
    heading(t("overview.slow")),
    table({client: (one) => sessionLink(one.client_id), ...nodeColumn(slowest), waiting: (one) => number(one.queued)}, slowest.slice(0, 10)),
  ];
}
