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
