"use strict";
const at = id => document.getElementById(id), file = at("file");

function element(name, properties, ...children) {
  const made = Object.assign(document.createElement(name), properties);
  made.append(...children);
  return made;
}
function say(text, error = false) {
  at("status").textContent = text;
  at("status").className = error ? "error" : "";
}
function preview(chosen) {
  const address = URL.createObjectURL(chosen), free = () => URL.revokeObjectURL(address);
  return element("img", { src: address, alt: chosen.name, onload: free, onerror: free });
}
function onPhotograph(use) {
  file.addEventListener("change", () => use(file.files[0]));
  at("controls").addEventListener("submit", event => event.preventDefault());
  addEventListener("dragover", event => { event.preventDefault(); document.body.classList.add("dropping"); });
  addEventListener("dragleave", event => { if (!event.relatedTarget) document.body.classList.remove("dropping"); });
  addEventListener("drop", event => {
    event.preventDefault();
    document.body.classList.remove("dropping");
    use(event.dataTransfer.files[0]);
  });
}
// The fragment of the address, "#12" for the neighbours of image 12, makes the back button work.
const choice = at("class"), onlyWrong = at("wrong"), images = at("images"), more = at("more");
let shown = 0, listing = 0, finding = 0;  // number of listed images; ids of the newest requests

async function ask(address, options) {
  const reply = await fetch(address, options);
  const answer = await reply.json();
  if (!reply.ok) throw new Error(answer.error);
  return answer;
}
function tile(image) {
  const kind = image.same === undefined ? "" : image.same ? "right" : "wrong";
  const mark = { right: "✓ ", wrong: "✗ " }[kind] || "";
  const picture = element("img", { src: `images/${image.part}/small/${image.index}`, alt: image.name, loading: "lazy" });
  const note = element("span", {}, element("b", { className: "mark" }, mark),
    image.cosine === undefined ? "" : image.cosine.toFixed(3));
  const linked = image.part === "query" || image.link;
  const made = element(linked ? "a" : "div", { className: `tile ${kind}`, title: `${image.class}: ${image.name}` },
    picture, image.cosine === undefined ? "" : note, element("span", {}, image.class.replace(/[-_/.]+/g, "$&\u200b")));  // lines may break there
  if (linked) made.href = `#${image.index}`;
  return made;
}
function show(answer, picture, lines) {
  const named = (answer.classes || []).map(found => element("li", {}, `${found.class}: ${(100 * found.probability).toFixed(1)} %`));
  const names = named.length ? [element("p", {}, "Enrolled classes, by probability:"), element("ol", {}, ...named)] : [];
  at("query").replaceChildren(picture, ...lines.map(line => element("p", {}, line)), ...names);
  at("near").replaceChildren(...answer.neighbors.map(tile));
  at("found").hidden = false;
  scrollTo({ top: 0 });
}
async function list(start) {
  const mine = ++listing;
  try {
    const answer = await ask(`list?start=${start}&class=${choice.value}&wrong=${onlyWrong.checked ? 1 : 0}`);
    if (mine !== listing) return;  // the choice has changed since
    if (start === 0) images.replaceChildren();
    images.append(...answer.images.map(tile));
    shown = start + answer.images.length;
    at("listed").textContent = `${answer.total.toLocaleString("en")} images`;
    more.hidden = shown >= answer.total;
  } catch (error) { if (mine === listing) say(error.message, true); }
}
async function open() {
  const index = location.hash.slice(1), mine = ++finding;
  if (!/^\d+$/.test(index)) { at("found").hidden = true; return; }
  say("");
  try {
    const answer = await ask(`neighbors/${index}`), right = answer.neighbors.filter(near => near.same).length;
    if (mine !== finding) return;  // another image has been chosen since
    const picture = element("img", { src: `images/query/large/${index}`, alt: answer.query.class });
    show(answer, picture, [answer.query.class, answer.query.name]);
    say(`${right} of the ${answer.neighbors.length} nearest images are of the class ${answer.query.class}.`);
  } catch (error) { if (mine === finding) say(error.message, true); }
}
async function photograph(chosen) {
  if (!chosen) return;
  const mine = ++finding;
  say(`searching for neighbours of ${chosen.name}`);
  try {
    const answer = await ask("", { method: "POST", body: chosen });
    if (mine !== finding) return;
    history.replaceState(null, "", location.pathname);
    show(answer, preview(chosen), [chosen.name]);
    say(`Nearest: ${answer.neighbors[0].class}, cosine ${answer.neighbors[0].cosine.toFixed(3)}.`);
  } catch (error) { if (mine === finding) say(`${chosen.name}: ${error.message}`, true); }
}
choice.addEventListener("change", () => list(0));
onlyWrong.addEventListener("change", () => list(0));
more.addEventListener("click", () => list(shown));
addEventListener("hashchange", open);
onPhotograph(photograph);
list(0);
open();
