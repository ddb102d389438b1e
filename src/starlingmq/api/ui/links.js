// Links to other brokers: which node carries each, its state, what waits and has passed; pause, resume and drain.

import {age, api, ask, el, heading, missing, nodeColumn, number, table} from "./base.js";
import {bytes} from "./chart.js";
import {t} from "./language.js";

const MARKS = {connected: "ok", connecting: "bad", waiting: "bad", paused: "warn"};
const LOST = {refused: "links.refused", kept_out: "links.kept_out", again: "links.again", dropped: "links.dropped"};
const DRAIN_SECONDS = 60;

const answer = el("p", {id: "links-answer", role: "status"});

async function change(how, name) {
  answer.className = "";
  answer.textContent = how === "drain" ? t("links.draining", {name, seconds: DRAIN_SECONDS}) : "";
  try {
    const told = await ask("POST", "/api/v1/links/" + how, {}, how === "drain" ? {name, seconds: DRAIN_SECONDS} : {name});
    answer.textContent = how === "drain" ? t("links.drained", {name}) : "";
    if (told.missing.length) answer.textContent = t("links.away", {name, nodes: told.missing.map((one) => one.node).join(", ")});
    dispatchEvent(new Event("hashchange"));
  } catch (error) {
    answer.className = "bad";
    answer.textContent = error.message;
  }
}

const WORDS = {pause: ["links.pause", "links.pause_of"], drain: ["links.drain", "links.drain_of"], resume: ["links.resume", "links.resume_of"]};
const button = (how, name) => el("button", {onclick: () => change(how, name), "aria-label": t(WORDS[how][1], {name})}, t(WORDS[how][0]));
const buttons = (one) => el("div", {class: "tools"}, ...(one.state === "paused" ? ["resume"] : ["pause", "drain"]).map((how) => button(how, one.name)));
const waiting = (one) => number(one.waiting) + (one.waiting_bytes ? ` (${bytes(one.waiting_bytes)})` : "");
const lost = (one) => Object.entries(LOST).filter(([name]) => one[name]).map(([name, key]) => t(key, {count: number(one[name])})).join(", ");
const problems = (one) => [one.problem, ...one.complaints].filter(Boolean).join("; ");

export async function links() {
  const told = await api("/links");
  return [
    missing(told),
    heading(t("tab.links")),
    el("p", {class: "faint"}, t("links.note")),
    told.links.length
      ? table({link: (one) => one.name, state: (one) => el("span", {class: MARKS[one.state] ?? "faint"}, t("links.state." + one.state)),
        for: (one) => age(new Date(Date.now() - one.seconds * 1000).toISOString()), ...nodeColumn(told.links), server: (one) => el("span", {class: "whole"}, one.server), waiting,
        "in flight": (one) => number(one.in_flight), out: (one) => number(one.messages_out), in: (one) => number(one.messages_in),
        "not carried": lost, problem: (one) => problems(one) && el("span", {class: "bad"}, problems(one)), action: buttons}, told.links)
      : el("p", {}, t("links.none")),
    answer,
  ];
}
