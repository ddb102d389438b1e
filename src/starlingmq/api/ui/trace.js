// The way of messages through all nodes, of some topics or one client.

import {el, heading} from "./base.js";
import {t} from "./language.js";
import {Stream} from "./stream.js";

const MESSAGES_MAX = 100;
const STEPS_MAX = 100; // of one message
const BAD = new Set(["refused", "dropped"]);

const about = (step) => [step.client && t("trace.client", {name: step.client}), step.peer && t("trace.node", {name: step.peer}),
  step.group && t("trace.group", {name: step.group}), step.dup ? t("trace.dup") : "", step.reason].filter(Boolean).join(", ");

export class Trace extends Stream {
  constructor(parameters) {
    const {topic = "", client_id = ""} = parameters;
    super("/api/v1/trace", {...(topic && {topic}), ...(client_id && {client_id})});
    this.messages = new Map(); // by id, the one that came first first
    this.list = el("div", {class: "lines", id: "traces"});
    this.whole = [heading(client_id ? t("trace.of_client", {name: client_id}) : t("trace.of_topic", {topic})),
      el("div", {class: "tools"}, this.button, this.state), this.away, this.left, this.list];
  }

  take(step) {
    let message = this.messages.get(step.id);
    if (!message) this.messages.set(step.id, (message = {topic: step.topic, qos: step.qos, steps: []}));
    if (message.steps.length < STEPS_MAX) message.steps.push(step);
    if (this.messages.size > MESSAGES_MAX) this.messages.delete(this.messages.keys().next().value);
  }

  paint() {
    this.list.replaceChildren(...[...this.messages].reverse().map(([id, one]) => el("div", {},
      el("b", {}, one.topic), el("small", {}, ` QoS ${one.qos}, ${id}`),
      el("ol", {}, ...one.steps.map((step) => el("li", {class: BAD.has(step.kind) ? "bad" : false},
        el("small", {}, `${String(step.at).slice(11, 23)} ${step.node} `), step.kind, el("small", {}, " " + about(step))))))));
  }
}
