{# SPDX-License-Identifier: LGPL-2.1-or-later #}
// The page is whole without this: here are sorting, filtering and copying.
// A browser may save the page after this has run, so that every step must bear being run twice.
"use strict";
(function () {
  function all(selector, root) {
    return Array.prototype.slice.call((root || document).querySelectorAll(selector));
  }
  function key(row, index) {
    var cell = row.cells[index];
    var exact = /^(-?[0-9,]+) bytes$/.exec(cell.title);
    var text = cell.getAttribute("data-v") || (exact ? exact[1] : cell.textContent.trim());
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
  // The words below a table are its headings' tooltips too.
  function explained(table) {
    var box = table.closest(".table"), words = box ? all(".columns dd", box) : [];
    all("thead th", table).forEach(function (heading, index) {
      if (!words[index]) return;
      var terms = all(".term", words[index].previousElementSibling).map(function (term) {
        return " " + term.textContent + ": " + term.getAttribute("data-says");
      });
      // The name that the CSV has.
      var name = words[index].previousElementSibling.firstChild.textContent.trim();
      heading.title = name + ": " + words[index].textContent + terms.join("");
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
        var text = row.textContent.toLowerCase().replace(/\s+/g, " ");
        row.hidden = !words.every(function (word) { return text.indexOf(word) >= 0; });
        if (!row.hidden) left += 1;
      });
      told.textContent = input.value ? left + " of " + rows.length + " rows" : "";
    });
    rows.forEach(function (row) { row.hidden = false; });
  }
  function copyable(button) {
    var source = button.getAttribute("data-copy"), name = source ? "Copy as text" : "Copy";
    button.hidden = false;
    button.textContent = name;
    button.addEventListener("click", function () {
      var text = (source ? document.getElementById(source) : button.previousElementSibling).textContent.replace(/\u00a0/g, " ");
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
  // A download is packed in its own link, which works as it is; unpacked it opens anywhere.
  function save(whole, name) {
    var goal = document.createElement("a");
    goal.href = URL.createObjectURL(whole);
    goal.download = name;
    goal.click();
    setTimeout(function () { URL.revokeObjectURL(goal.href); }, 60000);
  }
  function unpacked(link) {
    if (!window.DecompressionStream) return;
    link.addEventListener("click", function (event) {
      event.preventDefault();
      var packed = Uint8Array.from(atob(link.href.split(",")[1]), function (c) { return c.charCodeAt(0); });
      new Response(new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip")))
        .blob().then(function (whole) { save(whole, link.download.replace(/\.gz$/, "")); });
    });
  }
  all("table.sortable").forEach(function (table, number) {
    sortable(table);
    explained(table);
    filterable(table, number);
  });
  all("code.command").forEach(function (command) {
    var next = command.nextElementSibling, old = next && next.classList.contains("copy");
    var button = old ? next : document.createElement("button");
    button.type = "button";
    button.className = "copy inline";
    command.after(button);
  });
  all("button.copy").forEach(copyable);
  all("a.download").forEach(unpacked);
  // A link into something folded opens it, and one to a section that is.
  function reveal() {
    var goal = address.place() && document.getElementById(address.place());
    var own = goal && goal.querySelector(":scope > details.whole, :scope > details.more");
    if (own) own.open = true;
    for (var at = goal; at; at = at.parentElement) if (at.tagName === "DETAILS") at.open = true;
  }
  address.onchange(reveal);
  // To where the page is already, which may have been folded again since.
  addEventListener("click", function (event) {
    var link = event.target.closest && event.target.closest('a[href^="#"]');
    if (link && link.hash.slice(1) === address.place()) reveal();
  });
  reveal();
  // Which section is at the top of the window, in the contents.
  var places = all("nav a[href^='#']").map(function (link) {
    return { link: link, goal: document.getElementById(link.hash.slice(1)) };
  }).filter(function (place) { return place.goal; });
  var marking = false;
  function mark() {
    marking = false;
    var here = null;
    places.forEach(function (place) {
      place.link.removeAttribute("aria-current");
      var top = place.goal.getBoundingClientRect().top;
      if (top < 120 && (!here || top >= here.top)) here = { place: place, top: top };
    });
    if (!here) return;
    here.place.link.setAttribute("aria-current", "true");
    // In sight, in contents that are longer than the window, or wider.
    var nav = document.getElementById("contents");
    var link = here.place.link.getBoundingClientRect(), frame = nav.getBoundingClientRect();
    if (link.top < frame.top || link.bottom > frame.bottom) nav.scrollTop += link.top - frame.top - frame.height / 2;
    if (link.left < frame.left || link.right > frame.right) nav.scrollLeft += link.left - frame.left - 16;
  }
  addEventListener("scroll", function () {
    if (!marking) requestAnimationFrame(mark);
    marking = true;
  }, { passive: true });
  mark();
})();
