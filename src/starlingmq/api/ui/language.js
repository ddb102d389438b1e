// The language of the page: the chosen one, or the first of the browser's that there is.

import {LANGUAGES, WORDS} from "./words.js";

const wanted = [localStorage.getItem("language"), ...navigator.languages.map((one) => one.slice(0, 2)), "en"];
export const language = wanted.find((one) => one in LANGUAGES);
const column = Object.keys(LANGUAGES).indexOf(language);

// The text of a key, with values in its places.
export function t(key, values = {}) {
  return WORDS[key][column].replace(/\{(\w+)\}/g, (_, name) => values[name]);
}

// The title of a column, or of a name of the API that has words of its own.
export function named(key, otherwise = key) {
  const known = ["col." + key, key].find((one) => one in WORDS);
  return known ? t(known) : otherwise;
}

export function choose(wanted) {
  localStorage.setItem("language", wanted);
  location.reload();
}
