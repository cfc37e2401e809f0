{# SPDX-License-Identifier: LGPL-2.1-or-later #}
// One search over findings, sections, tables with their columns and rows, checks and the glossary;
// in the contents, whose place its answers take.
"use strict";
(function () {
  const MOST = 40;
  const nav = document.getElementById("contents"), list = nav && nav.querySelector(":scope > ul");
  if (!list) return;
  nav.querySelectorAll(".search, .found").forEach(function (old) { old.remove(); });
  list.hidden = false;
  const box = document.createElement("form"), found = document.createElement("ul");
  box.className = "search";
  box.setAttribute("role", "search");
  const input = document.createElement("input"), told = document.createElement("span");
  input.type = "search";
  input.placeholder = "Search ( / )";
  input.setAttribute("aria-label", "Search findings, tables and glossary");
  told.setAttribute("role", "status");
  box.append(input, told);
  found.className = "found";
  found.setAttribute("aria-label", "Found");
  found.hidden = true;
  list.before(box, found);

  let index = null;
  function text(element) { return element ? element.textContent.replace(/\s+/g, " ").trim() : ""; }
  function all(selector, act) { return Array.from(document.querySelectorAll(selector), act); }
  // What there is: words by which it is found, as it is called, and where it is.
  function built() {
    const findings = all("article.finding", function (each) {
      const title = each.dataset.title;
      return { kind: "finding", name: title, words: title + " " + text(each.querySelector(".seen")), id: each.id };
    });
    const questions = all(".questions li", function (each) {
      const link = each.querySelector("a");
      return { kind: "question", name: text(each.firstElementChild), words: text(each.firstElementChild), more: text(each), id: link ? link.hash.slice(1) : "top" };
    });
    const sections = all("main > section[id]", function (each) {
      const name = text(each.querySelector("h2"));
      return { kind: "section", name: name, words: name, id: each.id };
    });
    const tables = all("main [id^='table-']", function (each) {
      const name = each.id.slice(6), title = text(each.querySelector(".of-table .self"));
      const columns = Array.from(each.querySelectorAll(".columns dt, .columns dd"), text).join(" ");
      return {
        kind: "table", name: title && title.toLowerCase() !== name ? title + " " + name : name, words: name + " " + name.replace(/_/g, " ") + " " + title, more: columns, id: each.id,
        cut: Boolean(each.querySelector("table[data-cut]")),
        rows: Array.from(each.querySelectorAll("tbody tr"), function (row) { return text(row).toLowerCase(); }),
      };
    });
    const pictures = all("main [id^='picture-']", function (each) {
      const name = text(each.querySelector("h3"));
      return { kind: "picture", name: name, words: name, id: each.id };
    }).filter(function (each) { return each.name; });
    const terms = all(".glossary > div[id]", function (each) {
      const name = text(each.querySelector("dt"));
      return { kind: "glossary", name: name, words: name, more: text(each.querySelector("dd")), id: each.id };
    });
    const checks = all("dl.checks dt, ul.checks li", function (each) {
      const place = each.closest("details[id]"), name = text(each);
      return { kind: "check", name: name, words: name, id: place ? place.id : "reading" };
    });
    const every = questions.concat(findings, sections, pictures, tables, terms, checks);
    every.forEach(function (each) {
      each.words = each.words.toLowerCase();
      each.more = (each.more || "").toLowerCase();
    });
    return every;
  }
  // What else the field calls it; a word stands for those that begin as it does.
  const SAME = [
    ["leak", "grow", "grew", "unfreed", "unaccounted"], ["oom", "out of memory", "memory ran out", "killed"],
    ["thp", "huge page"], ["fragment", "free blocks", "unusable"], ["slow", "long", "waits", "stall"],
    ["owner", "who has", "holds"], ["swap", "pswp"], ["cgroup", "container", "pod"], ["min_free", "watermark"],
  ];
  function meant(word) {
    const stem = word.length > 4 ? word.replace(/(?:ing|ed|es|s)$/, "") : word;
    const same = SAME.find(function (group) { return group.some(function (each) { return stem.length > 2 && (each.startsWith(stem) || stem.startsWith(each)); }); });
    return [stem].concat(same || []);
  }
  // Each with how well it fits: by its name, by another word for it, by what is said of it, by its rows.
  function answers(words) {
    function has(text) { return words.every(function (word) { return text.includes(word); }); }
    function near(text) { return wide.every(function (group) { return group.some(function (word) { return text.includes(word); }); }); }
    // Of a question, what it is about; "memory" is in everything.
    const asked = words.filter(function (word) { return words.length === 1 || !/^(?:memory|an?|are|do|does|is|my|of|the|what|why)$/.test(word); }), wide = asked.map(meant);
    const fits = [[], [], [], []];
    index.forEach(function (each) {
      if (has(each.words) || (each.kind === "question" && near(each.words))) fits[0].push({ each: each, name: each.name });
      else if (near(each.words)) fits[1].push({ each: each, name: each.name });
      else if (has(each.words + " " + each.more)) fits[2].push({ each: each, name: each.name });
      const rows = each.rows ? each.rows.filter(has).length : 0;
      if (rows) fits[3].push({ each: each, name: each.id.slice(6) + ": " + rows + (rows === 1 ? " row" : " rows") + (each.cut ? " of those shown" : ""), rows: true });
    });
    return fits[0].concat(fits[1], fits[2], fits[3]);
  }
  function item(answer) {
    const line = document.createElement("li"), link = document.createElement("a"), kind = document.createElement("small");
    link.href = "#" + answer.each.id;
    kind.textContent = answer.each.kind;
    link.append(answer.name + " ", kind);
    link.addEventListener("click", function () {
      const filter = answer.rows && document.getElementById(answer.each.id).querySelector(".filter input");
      if (!filter) return;
      filter.value = input.value.trim();
      filter.dispatchEvent(new Event("input"));
    });
    line.append(link);
    return line;
  }
  function look() {
    const words = input.value.toLowerCase().split(/\s+/).filter(Boolean);
    index = index || built();
    const some = words.length ? answers(words) : [];
    found.replaceChildren.apply(found, some.slice(0, MOST).map(item));
    found.hidden = !words.length;
    list.hidden = Boolean(words.length);
    told.textContent = !words.length ? "" : some.length > MOST ? "the first " + MOST + " of " + some.length + " places"
      : some.length === 1 ? "1 place" : some.length ? some.length + " places"
      : "0 places. Try one word: leak, OOM, huge, slab, cgroup";
  }
  input.addEventListener("input", look);
  box.addEventListener("submit", function (event) {
    event.preventDefault();
    const first = found.querySelector("a");
    if (first) first.click();
  });
  function move(step) {
    const links = Array.from(found.querySelectorAll("a")), at = links.indexOf(document.activeElement) + step;
    (links[at] || input).focus();
  }
  nav.addEventListener("keydown", function (event) {
    if (found.hidden || !(box.contains(event.target) || found.contains(event.target))) return;
    if (event.key === "ArrowDown") move(1);
    else if (event.key === "ArrowUp") move(document.activeElement === input ? 0 : -1);
    else if (event.key === "Escape") {
      input.value = "";
      look();
      input.focus();
    } else return;
    event.preventDefault();
  });
  addEventListener("keydown", function (event) {
    const typing = event.target.closest && event.target.closest("input, textarea");
    if (event.key !== "/" || typing || event.ctrlKey || event.altKey || event.metaKey) return;
    event.preventDefault();
    input.focus();
  });
})();
