"use strict";
// Clicking a heading sorts the table: text alphabetically, numbers by value, missing values last.
for (const button of document.querySelectorAll("th button")) {
  button.addEventListener("click", () => {
    const head = button.closest("th"), body = head.closest("table").tBodies[0], column = head.cellIndex;
    const down = head.getAttribute("aria-sort") !== "descending";
    for (const other of head.parentNode.cells) other.removeAttribute("aria-sort");
    head.setAttribute("aria-sort", down ? "descending" : "ascending");
    const value = row => parseFloat(row.cells[column].dataset.value);
    const name = row => row.cells[column].textContent;
    const compare = (a, b) => {
      const x = value(a), y = value(b);
      if (isNaN(x) !== isNaN(y)) return isNaN(x) ? 1 : -1;
      const order = isNaN(x) ? name(a).localeCompare(name(b), "en", { numeric: true }) : x - y;
      return down ? -order : order;
    };
    body.append(...[...body.rows].sort(compare));
  });
}
// Maps show the picture of the point under the pointer (without this script, its name).
for (const map of document.querySelectorAll(".map")) {
  const sheet = map.querySelector(".sheet"), tip = map.querySelector(".tip"), columns = +sheet.dataset.columns;
  const [picture, text] = tip.children;
  picture.style.backgroundImage = `url(${sheet.src})`;
  picture.style.backgroundSize = `${columns * 112}px auto`;
  map.querySelectorAll("svg.plane use").forEach(point => {
    const i = +point.dataset.i, name = point.firstElementChild.textContent;
    point.firstElementChild.remove();
    point.addEventListener("pointerenter", event => {
      picture.style.backgroundPosition = `${-112 * (i % columns)}px ${-112 * Math.floor(i / columns)}px`;
      text.textContent = name;
      tip.hidden = false;
      tip.style.left = `${Math.min(event.clientX + 14, innerWidth - tip.offsetWidth - 4)}px`;
      tip.style.top = `${Math.min(event.clientY + 14, innerHeight - tip.offsetHeight - 4)}px`;
    });
    point.addEventListener("pointerleave", () => { tip.hidden = true; });
  });
}
