{# SPDX-License-Identifier: LGPL-2.1-or-later #}
// The charts of a watch, read at a moment or over a period. The picture is whole without this.
// A period begins and ends where points are: nothing is said of what is between two readings.
"use strict";
(function () {
  const SPACE = "http://www.w3.org/2000/svg", WIDTH = 1000;

  function panel(box) {
    box.querySelectorAll(".time-told, .cross, .brush").forEach(function (old) { old.remove(); });
    box.querySelectorAll(".now").forEach(function (old) { old.textContent = ""; });
    const first = Number(box.dataset.first), last = Number(box.dataset.last), base = box.dataset.base;
    const lanes = Array.from(box.querySelectorAll(".time-lane[data-unit]"), function (lane) {
      const svg = lane.querySelector(".time-plot svg"), now = lane.querySelectorAll(".now");
      const names = lane.querySelectorAll(".chart-legend li");
      return {
        svg: svg, unit: lane.dataset.unit, rate: "rate" in lane.dataset,
        lines: Array.from(svg.querySelectorAll("[data-points]"), function (path, at) {
          const numbers = path.dataset.points.split(" ").map(Number), points = [];
          for (let n = 0; n < numbers.length; n += 2) points.push([numbers[n], numbers[n + 1]]);
          return { points: points, now: now[at], name: names[at].textContent.trim() };
        }),
      };
    });
    const moments = Array.from(new Set(lanes.flatMap(function (lane) {
      return lane.lines.flatMap(function (line) { return line.points.map(function (point) { return point[0]; }); });
    }))).sort(function (a, b) { return a - b; });
    if (moments.length < 2) return;
    const overlays = lanes.map(function (lane) {
      const brush = document.createElementNS(SPACE, "path"), cross = document.createElementNS(SPACE, "path");
      brush.setAttribute("class", "brush");
      cross.setAttribute("class", "cross");
      lane.svg.append(brush, cross);
      return { brush: brush, cross: cross };
    });
    const told = document.createElement("div");
    told.className = "time-told";
    told.setAttribute("role", "status");
    box.prepend(told);
    box.tabIndex = 0;
    box.setAttribute("role", "group");
    box.setAttribute("aria-label", "Charts over time: arrow keys move, with Shift they choose a period, Escape ends it");

    let at = -1, period = null, from = null;
    function place(seconds) { return WIDTH * (seconds - first) / (last - first); }
    function said(value) { return Number(value.toPrecision(4)).toLocaleString("en", { maximumSignificantDigits: 4 }); }
    function clock(seconds) {
      if (base === "") return said(seconds) + " s";
      const day = (Number(base) + seconds) % 86400, whole = Math.floor(day);
      const parts = [Math.floor(whole / 3600), Math.floor(whole / 60) % 60, whole % 60];
      const rest = day - whole >= 0.001 ? (day - whole).toFixed(3).slice(1) : "";
      return parts.map(function (part) { return String(part).padStart(2, "0"); }).join(":") + rest;
    }
    function length(seconds) {
      return seconds >= 120 ? said(seconds / 60) + " min" : said(seconds) + " s";
    }
    // What a line has at a moment: of levels the last that was read, of steps the one that ends there or after.
    function valueAt(lane, line, moment) {
      if (!lane.rate) {
        const before = line.points.filter(function (point) { return point[0] <= moment; });
        return before.length ? before[before.length - 1][1] : null;
      }
      for (let n = 1; n < line.points.length; n += 2) {
        const left = line.points[n - 1][0], right = line.points[n][0];
        // What was read with it has a moment of its own, a little before or after.
        const near = Math.min(0.1, (right - left) / 2);
        if (moment <= right + near) return moment > left - near ? line.points[n][1] : null;
      }
      return null;
    }
    // Over a period: the mean of the rates whose steps are in it, or by how much a level differs.
    function over(lane, line, begin, end) {
      if (lane.rate) {
        let amount = 0, seconds = 0;
        for (let n = 1; n < line.points.length; n += 2) {
          const left = line.points[n - 1][0], right = line.points[n][0];
          if (left < begin - 1e-6 || right > end + 1e-6) continue;
          amount += line.points[n][1] * (right - left);
          seconds += right - left;
        }
        return seconds ? amount / seconds : null;
      }
      const inside = line.points.filter(function (point) { return point[0] >= begin && point[0] <= end; });
      return inside.length > 1 ? inside[inside.length - 1][1] - inside[0][1] : null;
    }
    // Whether a level is no farther from where it was than it is between two readings (the median),
    // as one that goes up and down; of fewer than four readings that is unknown.
    function sways(line, begin, end, difference) {
      const inside = line.points.filter(function (point) { return point[0] >= begin && point[0] <= end; });
      const steps = inside.slice(1).map(function (point, n) { return Math.abs(point[1] - inside[n][1]); });
      steps.sort(function (a, b) { return a - b; });
      return steps.length > 2 && Math.abs(difference) <= steps[steps.length >> 1];
    }
    function signed(value) { return (value > 0 ? "+" : "") + said(value); }
    function draw() {
      const moment = at < 0 ? null : moments[at];
      overlays.forEach(function (overlay) {
        overlay.cross.setAttribute("d", moment === null ? "" : "M" + place(moment) + " 0V100");
        overlay.brush.setAttribute("d", period ? "M" + place(period[0]) + " 0H" + place(period[1]) + "V100H" + place(period[0]) + "Z" : "");
      });
      lanes.forEach(function (lane) {
        lane.lines.forEach(function (line) {
          const value = period ? over(lane, line, period[0], period[1]) : moment === null ? null : valueAt(lane, line, moment);
          const known = value === null ? "n/a" : period && !lane.rate ? signed(value) : said(value);
          line.now.textContent = period || moment !== null ? known : "";
        });
      });
      tell(moment);
    }
    function tell(moment) {
      told.replaceChildren();
      if (!period) {
        told.append(moment === null ? "Hover for values, of levels the last that was read; drag to select a period." : clock(moment));
        return;
      }
      const button = document.createElement("button");
      button.type = "button";
      button.textContent = "Whole time";
      button.addEventListener("click", function () { choose(null); });
      told.append(clock(period[0]) + " to " + clock(period[1]) + " (" + length(period[1] - period[0]) + "): mean rates, and by how much levels differ. ", button);
      const grown = lanes.filter(function (lane) { return /^([KMGTPE]i)?B$/.test(lane.unit); }).flatMap(function (lane) {
        const factor = Math.pow(1024, "BKMGTPE".indexOf(lane.unit[0]));
        return lane.lines.map(function (line) {
          const value = over(lane, line, period[0], period[1]);
          const noise = value !== null && sways(line, period[0], period[1], value);
          return { name: line.name, value: value, bytes: value * factor, unit: lane.unit, noise: noise };
        });
      }).filter(function (each) { return each.value; });
      const most = Math.max(...grown.map(function (each) { return Math.abs(each.bytes); }));
      const moved = grown.filter(function (each) { return !each.noise && Math.abs(each.bytes) >= most / 100; });
      const left = grown.length - moved.length;
      moved.sort(function (a, b) { return b.bytes - a.bytes; });
      function listed(words, whose) {
        if (!whose.length) return;
        const list = document.createElement("ul");
        list.setAttribute("aria-label", words);
        whose.forEach(function (each) {
          const item = document.createElement("li");
          item.textContent = each.name + " " + signed(each.value) + " " + each.unit;
          list.append(item);
        });
        told.append(" " + words + ": ", list);
      }
      listed("Who grew", moved.filter(function (each) { return each.value > 0; }));
      listed("Who shrank", moved.filter(function (each) { return each.value < 0; }).reverse());
      if (!moved.length) told.append(" No level differs" + (left ? " by more than it sways." : "."));
      if (left && moved.length) told.append(" Left out: " + left + (left === 1 ? " level that differs" : " levels that differ") + " by no more than between two readings, or by less than 1 % of the largest.");
    }
    function choose(next) {
      period = next && next[0] !== next[1] ? next.slice().sort(function (a, b) { return a - b; }) : null;
      address.set("time", period ? period.join("-") : "");
      draw();
    }
    function nearest(event) {
      const frame = lanes[0].svg.getBoundingClientRect();
      const seconds = first + (last - first) * (event.clientX - frame.left) / frame.width;
      return moments.reduce(function (best, moment, n) {
        return Math.abs(moment - seconds) < Math.abs(moments[best] - seconds) ? n : best;
      }, 0);
    }
    function plot(event) { return event.target.closest(".time-plot"); }
    box.addEventListener("pointerdown", function (event) {
      if (!plot(event) || event.button) return;
      from = moments[nearest(event)];
      event.preventDefault();  // no text is selected
    });
    box.addEventListener("pointermove", function (event) {
      if (from === null && !plot(event)) return;
      at = nearest(event);
      if (from !== null && moments[at] !== from) choose([from, moments[at]]);
      else draw();
    });
    addEventListener("pointerup", function () { from = null; });
    box.addEventListener("pointerleave", function () {
      if (from !== null) return;
      at = -1;
      draw();
    });
    box.addEventListener("keydown", function (event) {
      if (event.target !== box || event.ctrlKey || event.altKey || event.metaKey) return;
      const step = { ArrowLeft: -1, ArrowRight: 1, Home: -moments.length, End: moments.length }[event.key];
      if (event.key === "Escape") choose(null);
      else if (step) {
        const before = at < 0 ? (step > 0 ? -1 : moments.length) : at;
        at = Math.min(Math.max(before + step, 0), moments.length - 1);
        if (event.shiftKey) {
          if (!period) from = moments[Math.max(before, 0)];
          choose([from === null ? period[0] : from, moments[at]]);
        } else draw();
      } else return;
      event.preventDefault();
    });
    box.addEventListener("keyup", function (event) { if (event.key === "Shift") from = null; });
    function recall() {
      const ends = address.get("time").split("-").map(Number);
      const known = ends.length === 2 && ends.every(function (end) { return moments.includes(end); });
      period = known && ends[0] < ends[1] ? ends : null;
      draw();
    }
    address.onchange(recall);
    recall();
  }
  document.querySelectorAll(".time").forEach(panel);
})();
