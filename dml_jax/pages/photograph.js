"use strict";
// Shared by the pages that take a photograph, chosen or dropped anywhere.
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
