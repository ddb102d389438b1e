// The most active clients, and the slow ones: rates of clients from two counts a second or more apart.

import {api, el, heading, missing, nodeColumn, number, sessionLink, table} from "./base.js";
import {bytes} from "./chart.js";
import {t} from "./language.js";

const LIMIT = 50;
const SORTS = {queued: "waiting", inflight: "in flight", dropped: "dropped", messages_in: "messages in/s", bytes_in: "in/s", bytes_out: "out/s", subscriptions: "subscriptions"};

const go = (sort) => { location.hash = "#activity?" + new URLSearchParams({sort}); };
const slow = (one) => (one.slow ? el("span", {class: "bad"}, t("col.slow")) : "");
const title = heading(t("activity.title"));
const note = el("p", {class: "faint"}, t("activity.note"));

export async function activity(seen, parameters) {
  const sort = parameters.sort in SORTS ? parameters.sort : "queued";
  const told = await api("/activity", {sort, limit: LIMIT});
  const head = Object.fromEntries(Object.entries(SORTS).map(([key, name]) => [name, {sorted: key === sort ? "descending" : false, sort: () => go(key)}]));
  return [title, note, missing(told),
    table({client: (one) => sessionLink(one.client_id), from: (one) => one.peer, slow, waiting: (one) => number(one.queued), "in flight": (one) => number(one.inflight ?? 0), dropped: (one) => number(one.dropped),
      "messages in/s": (one) => number(one.messages_in), "in/s": (one) => bytes(one.bytes_in), "out/s": (one) => bytes(one.bytes_out),
      subscriptions: (one) => number(one.subscriptions), ...nodeColumn(told.clients)}, told.clients, head)];
}
