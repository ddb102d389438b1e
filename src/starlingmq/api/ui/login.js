// Logins by OpenID Connect, and logging out. What was begun stays in this tab, so a link cannot finish a login of another browser.

import {$} from "./base.js";
import {t} from "./language.js";

async function post(path, body) {
  const answer = await fetch("/api/v1/login/" + path, {
    method: "POST", headers: {"Content-Type": "application/json"}, body: JSON.stringify(body), credentials: "omit",
  });
  const told = await answer.json();
  if (!answer.ok) throw new Error(told.error);
  return told;
}

// Show the button, if this broker has a provider.
export async function offer(complain) {
  const answer = await fetch("/api/v1/login", {credentials: "omit"});
  const {provider} = answer.ok ? await answer.json() : {};
  if (!provider) return;
  const button = $("provider");
  button.textContent = t("login.provider", {name: provider});
  button.hidden = false;
  button.onclick = async () => {
    button.disabled = true;
    try {
      const begun = await post("start", {});
      sessionStorage.setItem("login", JSON.stringify({attempt: begun.attempt, view: location.hash}));
      location.assign(begun.address);
    } catch (error) {
      complain(error.message);
    } finally {
      button.disabled = false;
    }
  };
}

// When the provider has sent the browser back: the reason why it is not logged in, "" if there is none.
export async function finish() {
  const sent = new URLSearchParams(location.search);
  if (!sent.has("state")) return "";
  const begun = JSON.parse(sessionStorage.getItem("login"));
  sessionStorage.removeItem("login");
  history.replaceState(null, "", "/" + (begun?.view ?? ""));
  if (!begun) return t("login.elsewhere");
  if (!sent.has("code")) return t("login.refused", {code: (sent.get("error") ?? "").replace(/[^a-z_]/g, "").slice(0, 40)});
  $("state").textContent = t("login.verifying");
  try {
    const told = await post("finish", {
      code: sent.get("code"), state: sent.get("state"), attempt: begun.attempt, issuer: sent.get("iss") ?? "",
    });
    sessionStorage.setItem("authorization", "Bearer " + told.token);
    sessionStorage.setItem("logout", told.logout);
    return "";
  } catch (error) {
    return error.message;
  }
}

export const isLoggedIn = () => sessionStorage.getItem("authorization") !== null;

export function logOut() {
  const address = sessionStorage.getItem("logout");
  sessionStorage.removeItem("authorization");
  sessionStorage.removeItem("logout");
  if (address) location.assign(address);
  else location.reload();
}
