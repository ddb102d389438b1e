// An MQTT client to try things by hand: it connects as a user to a WebSocket listener of this node. The view stays as it is between two drawings.

import {api, el, heading, number} from "./base.js";
import {t} from "./language.js";
import {MqttSocket} from "./mqtt.js";

const MESSAGES_MAX = 200;
const PAYLOAD_SIGNS = 2000;
const PAINT_MS = 250;
const REASONS = {0x80: "unspecified error", 0x81: "malformed packet", 0x82: "protocol error", 0x85: "client identifier not valid", 0x86: "bad user name or password",
  0x87: "not authorized", 0x88: "server unavailable", 0x89: "server busy", 0x8a: "banned", 0x8b: "server shutting down", 0x8d: "keep alive timeout",
  0x8e: "session taken over", 0x8f: "topic filter invalid", 0x90: "topic name invalid", 0x93: "receive maximum exceeded", 0x95: "packet too large",
  0x96: "message rate too high", 0x97: "quota exceeded", 0x98: "administrative action", 0x9c: "use another server", 0x9d: "server moved",
  0x9f: "connection rate exceeded"}; // the words of the specification

const spelled = (reason, text = "") => [`0x${reason.toString(16).padStart(2, "0")}`, REASONS[reason], text && `(${text})`].filter(Boolean).join(" ");
const labelled = (text, field, kind = "") => el("label", {class: kind}, `${text} `, field);
const levels = (name) => el("select", {"aria-label": t(name)}, ...[0, 1, 2].map((one) => el("option", {value: one}, `QoS ${one}`)));

let client = null;
let reached = false; // the broker has accepted this connection
let messages = [];
let count = 0;
let changed = false;
const filters = new Map(); // what is subscribed to, with the QoS that was asked for

const url = el("input", {required: "", pattern: "wss?://.+", list: "hand-listeners", id: "hand-url"});
const offered = el("datalist", {id: "hand-listeners"});
const id = el("input", {placeholder: t("hand.empty_id"), id: "hand-client"});
const user = el("input", {autocomplete: "off", id: "hand-user"});
const password = el("input", {type: "password", autocomplete: "off", id: "hand-password"});
const button = el("button", {id: "hand-connect"}, t("hand.connect"));
const state = el("p", {id: "hand-state", role: "status", class: "faint"}, t("hand.disconnected"));
const told = el("p", {id: "hand-told", role: "status", class: "faint"});
const filter = el("input", {required: "", placeholder: "plant/#", "aria-label": t("hand.subscription"), id: "hand-filter"});
const filterQos = levels("hand.subscription_qos");
const topic = el("input", {required: "", placeholder: "plant/1", "aria-label": t("publish.topic"), id: "hand-topic"});
const payload = el("input", {placeholder: t("payload"), "aria-label": t("payload"), id: "hand-payload"});
const topicQos = levels("publish.qos");
const retain = el("input", {type: "checkbox"});
const list = el("div", {class: "lines", id: "hand-messages", tabindex: 0, role: "log", "aria-live": "off", "aria-label": t("hand.messages", {count: 0})});
const listed = heading(t("hand.messages", {count: 0}));
const held = el("ul", {class: "missing", id: "hand-filters"});
const connection = el("form", {class: "facts", onsubmit: (event) => {
  event.preventDefault();
  if (client) client.disconnect();
  else open();
}}, labelled(t("hand.url"), url, "long"), offered, labelled(t("client_id"), id), labelled(t("user"), user), labelled(t("password"), password), button);
const subscribing = form("subscribe", () => client.subscribe(filter.value, Number(filterQos.value)), filter, filterQos);
const publishing = form("publish", () => {
  client.publish(topic.value, payload.value, Number(topicQos.value), retain.checked);
  if (topicQos.value === "0") say(told, t("hand.sent", {subject: topic.value}));
}, topic, payload, topicQos, el("label", {}, retain, ` ${t("retain")}`));
const none = el("div", {hidden: "", id: "hand-none"}, el("p", {class: "warn"}, t("hand.none")), el("pre", {}, "listeners:\n- ws://127.0.0.1:8083/mqtt"), el("p", {}, t("hand.none_more")));
const mixed = el("p", {class: "warn", hidden: ""}, t("hand.mixed"));
const clear = el("button", {onclick: () => {
  messages = [];
  count = 0;
  changed = true;
}}, t("hand.clear"));
const working = el("fieldset", {disabled: "", id: "hand-use"}, subscribing, held, publishing, told);
const whole = [heading(t("hand.title")), el("p", {class: "faint"}, t("hand.note")), none, mixed, connection, state, working, el("div", {class: "tools"}, listed, clear), list];

function form(name, act, ...fields) {
  return el("form", {class: "tools", onsubmit: (event) => {
    event.preventDefault();
    try {
      act();
    } catch (error) {
      if (!(error instanceof RangeError)) throw error;
      say(told, t("hand.too_much"), "bad");
    }
  }}, ...fields, el("button", {}, t(name)));
}

function say(where, text, mark = "faint") {
  where.textContent = text;
  where.className = mark;
}

function open() {
  reached = false;
  say(state, t("hand.connecting"));
  button.textContent = t("hand.disconnect");
  try {
    client = new MqttSocket(url.value, {client_id: id.value, username: user.value, password: password.value}, {connected, message, answered, closed});
  } catch (error) { // an address that the browser does not take
    button.textContent = t("hand.connect");
    say(state, error.message, "bad");
  }
}

function connected({client_id}) {
  reached = true;
  say(state, t("hand.connected", {client: client_id}), "ok");
  use(true);
}

function use(possible) {
  working.toggleAttribute("disabled", !possible);
}

function closed({reason, text, clean}) {
  client = null;
  button.textContent = t("hand.connect");
  use(false);
  filters.clear();
  showFilters();
  if (clean) say(state, t("hand.disconnected"));
  else if (reason !== null) say(state, t("hand.ended", {reason: spelled(reason, text)}), "bad");
  else say(state, reached ? t("hand.lost") : t("hand.failed", {origin: location.origin, host: location.hostname}), "bad");
}

function answered(name, subject, reason) {
  if (reason >= 0x80) {
    say(told, t("hand.refused", {name: t(name), subject, reason: spelled(reason)}), "bad");
    return;
  }
  if (name === "subscribe") filters.set(subject, reason);
  if (name === "unsubscribe") filters.delete(subject);
  showFilters();
  say(told, {subscribe: t("hand.granted", {subject, qos: reason}), unsubscribe: t("hand.unsubscribed", {subject}), publish: t("hand.published", {subject})}[name]);
}

function showFilters() {
  held.replaceChildren(...[...filters].map(([name, qos]) => el("li", {class: "tools"}, el("span", {}, `${name} (QoS ${qos})`),
    el("button", {type: "button", "aria-label": t("hand.unsubscribe", {filter: name}), onclick: () => client.unsubscribe(name)}, "×"))));
}

function message(one) {
  messages.push({...one, payload: readable(one.payload), at: new Date().toLocaleTimeString("sv")});
  if (messages.length > MESSAGES_MAX) messages.shift();
  count++;
  changed = true;
}

function readable(bytes) {
  try {
    return new TextDecoder("utf-8", {fatal: true}).decode(bytes.subarray(0, PAYLOAD_SIGNS), {stream: true});
  } catch {
    return t("size", {size: number(bytes.length)});
  }
}

setInterval(() => {
  if (!changed) return;
  changed = false;
  listed.textContent = t("hand.messages", {count: number(count)});
  list.setAttribute("aria-label", listed.textContent);
  list.replaceChildren(...messages.slice().reverse().map((one) => el("div", {}, el("small", {}, `${one.at} QoS ${one.qos} `), el("b", {}, one.topic),
    one.retain ? el("small", {}, ` ${t("retained")}`) : "", el("code", {}, one.payload))));
}, PAINT_MS);

document.addEventListener("securitypolicyviolation", () => { if (!reached) client?.over(); });
addEventListener("pagehide", () => client?.disconnect());

// The address of a listener as this browser reaches it.
function reachable(address) {
  const found = new URL(address);
  found.hostname = location.hostname;
  return found.href;
}

export async function hand() {
  const told = await api("/listeners");
  const listeners = told.listeners.map((one) => one.address).filter((one) => /^wss?:/.test(one)).map(reachable);
  const secure = location.protocol === "https:";
  none.hidden = listeners.length > 0;
  mixed.hidden = !secure || !listeners.length || listeners.some((one) => one.startsWith("wss:"));
  offered.replaceChildren(...listeners.map((one) => el("option", {value: one})));
  if (!url.value && listeners.length) url.value = listeners.find((one) => secure && one.startsWith("wss:")) ?? listeners[0];
  return whole;
}
