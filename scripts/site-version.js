// The version of these pages in the header, to be changed. The list of versions is a script in the directory above all versions.
const shown = document.currentScript.src;
const base = shown.slice(0, shown.lastIndexOf("/") + 1); // of this version
const mine = decodeURIComponent(base.split("/").at(-2));

const list = document.createElement("script");
list.src = base + "../versions.js";
list.addEventListener("load", () => {
  const pages = window.siteVersions;
  const choice = document.createElement("select");
  choice.id = "version";
  choice.setAttribute("aria-label", "Version");
  for (const version of Object.keys(pages)) choice.add(new Option(version, version, false, version === mine));
  choice.addEventListener("change", () => {
    const page = location.href.slice(base.length).split(/[?#]/)[0];
    location.href = base + "../" + encodeURIComponent(choice.value) + "/" + (pages[choice.value].includes(page) ? page : "index.html");
  });
  document.querySelector(".md-header__title").after(choice);
});
document.head.append(list);
