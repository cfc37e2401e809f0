{# SPDX-License-Identifier: LGPL-2.1-or-later #}
// The page is whole without this: here are sorting, filtering, copying, and details open in print.
// A browser may save the page after this has run, so that every step must bear being run twice.
"use strict";
(function () {
  function all(selector, root) {
    return Array.prototype.slice.call((root || document).querySelectorAll(selector));
  }
  function key(row, index) {
    var cell = row.cells[index];
    var text = cell.getAttribute("data-v") || cell.textContent.trim();
    if (text === "") return null;
    var number = Number(text.replace(/,/g, ""));
    return Number.isNaN(number) ? text.toLowerCase() : number;
  }
  // Numbers before words, what is not known last, whichever way round.
  function compare(a, b, sign) {
    if (a === null || b === null) return a === b ? 0 : a === null ? 1 : -1;
    if (typeof a !== typeof b) return typeof a === "number" ? -1 : 1;
    return a < b ? -sign : a > b ? sign : 0;
  }
  function sort(table, index, heading) {
    var up = heading.getAttribute("aria-sort") !== "ascending";
    all("th[aria-sort]", table).forEach(function (th) { th.removeAttribute("aria-sort"); });
    heading.setAttribute("aria-sort", up ? "ascending" : "descending");
    var body = table.tBodies[0];
    var rows = all("tr", body).map(function (row) { return { row: row, key: key(row, index) }; });
    rows.sort(function (a, b) { return compare(a.key, b.key, up ? 1 : -1); });
    rows.forEach(function (item) { body.appendChild(item.row); });
  }
  function sortable(table) {
    all("thead th", table).forEach(function (heading, index) {
      var old = heading.querySelector("button");
      var button = document.createElement("button");
      button.type = "button";
      var from = old || heading;
      while (from.firstChild) button.appendChild(from.firstChild);
      if (old) old.remove();
      heading.appendChild(button);
      button.addEventListener("click", function () { sort(table, index, heading); });
    });
  }
  function filterable(table, number) {
    var rows = all("tr", table.tBodies[0]);
    if (rows.length <= 15) return;
    var box = table.closest(".scroll");
    var before = box.previousElementSibling;
    if (before && before.classList.contains("filter")) before.remove();
    var bar = document.createElement("p");
    bar.className = "filter";
    var label = document.createElement("label");
    label.textContent = table.hasAttribute("data-cut") ? "Filter the rows shown" : "Filter";
    label.htmlFor = "filter-" + number;
    var input = document.createElement("input");
    input.type = "search";
    input.id = "filter-" + number;
    var told = document.createElement("span");
    told.setAttribute("role", "status");
    bar.append(label, input, told);
    box.before(bar);
    input.addEventListener("input", function () {
      var words = input.value.toLowerCase().split(/\s+/);
      var left = 0;
      rows.forEach(function (row) {
        var text = row.textContent.toLowerCase();
        row.hidden = !words.every(function (word) { return text.indexOf(word) >= 0; });
        if (!row.hidden) left += 1;
      });
      told.textContent = input.value ? left + " of " + rows.length + " rows" : "";
    });
    rows.forEach(function (row) { row.hidden = false; });
  }
  function copyable(button) {
    var name = "Copy as text";
    button.hidden = false;
    button.textContent = name;
    button.addEventListener("click", function () {
      var text = document.getElementById(button.getAttribute("data-copy")).textContent;
      function done(word) {
        button.textContent = word;
        setTimeout(function () { button.textContent = name; }, 2000);
      }
      function byHand() {
        var area = document.createElement("textarea");
        area.value = text;
        button.after(area);
        area.select();
        var copied = document.execCommand("copy");
        area.remove();
        done(copied ? "Copied" : "Not allowed");
      }
      if (!navigator.clipboard) return byHand();
      navigator.clipboard.writeText(text).then(function () { done("Copied"); }, byHand);
    });
  }
  all("table.sortable").forEach(function (table, number) {
    sortable(table);
    filterable(table, number);
  });
  all("button.copy").forEach(copyable);
  // A link into something folded opens it.
  function reveal() {
    var goal = location.hash.length > 1 && document.getElementById(location.hash.slice(1));
    for (var at = goal; at; at = at.parentElement) if (at.tagName === "DETAILS") at.open = true;
  }
  addEventListener("hashchange", reveal);
  reveal();
  var folded = [];
  addEventListener("beforeprint", function () {
    folded = all("details:not([open])");
    folded.forEach(function (item) { item.open = true; });
  });
  addEventListener("afterprint", function () {
    folded.forEach(function (item) { item.open = false; });
  });
})();
