"use strict";
// The OpenAPI document, readable without the internet.

function el(name, attributes, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children);
  return made;
}

const kind = (schema = {}) => schema.$ref?.split("/").pop() ?? schema.enum?.join(" | ") ?? schema.type ??
  (schema.oneOf || schema.anyOf || []).map(kind).join(" or ");

function rows(entries) {
  const lines = entries.map((cells) => el("tr", {}, ...cells.map((cell) => el("td", {}, cell ?? ""))));
  return el("div", {class: "scroll"}, el("table", {}, el("tbody", {}, ...lines)));
}

function operation(path, method, one) {
  const body = one.requestBody?.content["application/json"]?.schema;
  const parameters = (one.parameters || []).map((p) => [p.name + (p.required ? " *" : ""), kind(p.schema), p.description || p.schema?.description]);
  const answers = Object.entries(one.responses).map(([code, answer]) =>
    [code, kind(Object.values(answer.content || {})[0]?.schema), answer.description]);
  return el("details", {}, el("summary", {}, el("b", {}, method.toUpperCase() + " "), path + " ", el("small", {}, one.summary || "")),
    parameters.length ? rows(parameters) : "", body ? el("p", {}, "Body: " + kind(body)) : "", rows(answers));
}

async function show() {
  const known = sessionStorage.getItem("authorization");
  const answer = await fetch("/api/v1/openapi.json", {headers: known ? {Authorization: known} : {}, credentials: "omit"});
  if (!answer.ok) return;
  const told = await answer.json();
  const parts = [el("p", {}, told.info.description)];
  for (const [path, operations] of Object.entries(told.paths))
    for (const [method, one] of Object.entries(operations)) parts.push(operation(path, method, one));
  parts.push(el("h2", {}, "Schemas"));
  for (const [name, schema] of Object.entries(told.components?.schemas || {}))
    parts.push(el("details", {}, el("summary", {}, name),
      rows(Object.entries(schema.properties || {}).map(([key, value]) => [key, kind(value), value.description]))));
  document.getElementById("view").replaceChildren(...parts);
}

show();
