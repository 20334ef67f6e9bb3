// A table that is wider than its frame becomes one card for each row; nothing is cut.
function arrangeTables() {
  let cut = 0;
  const closed = [...document.querySelectorAll("article details:not([open])")];
  closed.forEach((fold) => (fold.open = true)); // what is folded has no width
  for (const table of document.querySelectorAll("article table.docutils")) {
    const frame = table.parentElement;
    const isCut = () => table.getBoundingClientRect().width > frame.clientWidth + 1;
    table.classList.remove("cards");
    if (isCut()) table.classList.add("cards");
    if (isCut()) cut += 1;
  }
  closed.forEach((fold) => (fold.open = false));
  document.documentElement.dataset.cutTables = cut;
}

document.addEventListener("DOMContentLoaded", () => {
  for (const table of document.querySelectorAll("article table.docutils")) {
    const headings = [...table.querySelectorAll("thead th")].map((cell) => cell.textContent);
    for (const row of table.querySelectorAll("tbody tr")) {
      [...row.cells].forEach((cell, place) => (cell.dataset.heading = headings[place] || ""));
    }
  }
  arrangeTables();
});
window.addEventListener("resize", arrangeTables);
