// The page: which view is shown, how often it is asked for, and logging in. No library, and nothing from elsewhere.

import {$, LoginNeeded, api, el, forgetWhatLacks, heading, maybe, replace} from "./base.js";
import {declaredViews} from "./declared.js";
import {choose, language, t} from "./language.js";
import {finish, isLoggedIn, logOut, offer} from "./login.js";
import {Log} from "./log.js";
import {addTab, criticalAlarms, makeTabs, showAlarms, showTab} from "./tabs.js";
import {Tail} from "./tail.js";
import {Trace} from "./trace.js";
import {VIEWS} from "./views.js";
import {LANGUAGES} from "./words.js";

const EVERY_MS = 2000;
const ALARMS_MS = 5000;
const LIVE = {
  topics: {title: t("tab.topics"), make: (parameters) => new Tail(parameters)},
  trace: {make: (parameters) => new Trace(parameters)},
  log: {title: t("tab.log"), make: (parameters) => new Log(parameters)},
};

makeTabs(Object.fromEntries(Object.entries({...VIEWS, ...LIVE}).map(([name, one]) => [name, one.title])));
document.documentElement.lang = language;
for (const one of document.querySelectorAll("[data-words]")) one.textContent = t(one.dataset.words);
$("language").setAttribute("aria-label", t("language"));
$("language").append(...Object.entries(LANGUAGES).map(([code, name]) => el("option", {value: code, lang: code, selected: code === language ? "" : false}, name)));
$("language").addEventListener("change", () => choose($("language").value));

let views = {...VIEWS};
let declared = null; // those that the broker declares, once it has told

async function takeDeclared() {
  declared ??= declaredViews({...VIEWS, ...LIVE}).then((found) => {
    for (const [name, one] of Object.entries(found)) addTab(name, one);
    views = {...VIEWS, ...found};
  }).catch(() => { declared = null; });
  await declared;
}

let turn = 0;
let live = null; // the view that goes on by itself, while it is shown
let liveAt = "";
let refusal = ""; // why a login by the provider has failed

// While a login is verified, which may take seconds.
function verifying(busy) {
  const button = $("login").querySelector("button");
  button.disabled = busy;
  button.textContent = t(busy ? "login.verifying" : "login");
}

$("login").querySelector("form").addEventListener("submit", async (event) => {
  event.preventDefault();
  const bytes = new TextEncoder().encode($("user").value + ":" + $("password").value);
  const basic = "Basic " + btoa(String.fromCharCode(...bytes));
  sessionStorage.removeItem("logout");
  sessionStorage.setItem("authorization", $("token").value ? "Bearer " + $("token").value : basic);
  $("refused").textContent = "";
  verifying(true);
  await refresh();
  verifying(false);
});

$("logout").addEventListener("click", logOut);

function settle(name, parts, clustered) {
  refusal = "";
  $("logout").hidden = !isLoggedIn();
  $("login").close();
  $("view").classList.remove("stale");
  if (parts) replace($("view"), parts);
  showTab(name, clustered);
  document.body.dataset.shown = name;
}

function complain(error) {
  if (error instanceof LoginNeeded) {
    $("refused").textContent = error.first ? refusal : error.message;
    sessionStorage.removeItem("authorization");
    $("logout").hidden = true;
    if (!$("login").open) {
      $("login").showModal();
      offer((why) => { $("refused").textContent = why; }).catch(() => {}); // a broker that does not answer is told below
    }
    return;
  }
  forgetWhatLacks(); // it may come back as another version
  $("state").textContent = error instanceof TypeError ? t("no_answer") : error.message;
  $("state").className = "bad";
  $("refused").textContent = $("state").textContent;
  $("view").classList.add("stale");
}

// What a link leads to may have ended: that is an answer of the broker, not a failure.
function absent(parameters, error) {
  const wanted = parameters.client_id ?? parameters.topic;
  if (error.status === 403) return [heading(wanted ?? ""), el("p", {id: "forbidden", class: "bad"}, error.message)];
  if (error.status !== 404 || wanted === undefined) throw error;
  const why = parameters.topic === undefined && parameters.place === undefined ? t("session.absent") : error.message;
  return [heading(wanted), el("p", {id: "absent"}, why)];
}

async function refresh() {
  const mine = ++turn; // a later one makes earlier answers worthless
  const [asked, query] = location.hash.slice(1).split("?");
  const parameters = Object.fromEntries(new URLSearchParams(query));
  if (live && liveAt !== location.hash) {
    live.leave();
    live = null;
  }
  try {
    const seen = await api("/overview");
    await takeDeclared();
    if (mine !== turn) return;
    const name = asked in views || asked in LIVE ? asked : "overview";
    let parts = null;
    if (name in LIVE) {
      if (!live) {
        live = LIVE[name].make(parameters);
        liveAt = location.hash;
        parts = live.show();
      }
    } else {
      parts = await views[name].show(seen, parameters).catch((error) => absent(parameters, error));
      if (mine !== turn) return;
    }
    $("node").textContent = `${seen.node} ${seen.version}`;
    const degraded = seen.cluster && seen.cluster.status !== "healthy";
    const critical = criticalAlarms ? t("serving.critical", {count: criticalAlarms}) : "";
    $("state").textContent = seen.ready.reasons.join("; ") || (degraded ? seen.cluster.summary : critical || t("serving"));
    $("state").className = seen.ready.reasons.length || degraded || critical ? "bad" : "ok";
    $("state").title = degraded ? seen.cluster.next : "";
    settle(name, parts, Boolean(seen.cluster));
  } catch (error) {
    if (mine === turn) complain(error);
  }
}

async function countAlarms() {
  if (document.hidden || $("login").open) return;
  const told = await maybe("/alarms").catch(() => null);
  showAlarms(told?.alarms.length ?? 0, told?.alarms.filter((one) => one.severity === "critical").length ?? 0);
}

refusal = await finish();
addEventListener("hashchange", refresh);
setInterval(countAlarms, ALARMS_MS);
setInterval(() => { if (!document.hidden && !$("login").open) refresh(); }, EVERY_MS);
refresh();
countAlarms();
