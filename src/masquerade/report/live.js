// Asks the server of a page that is live what is new, and shows it; at the end comes the report.
"use strict";
(() => {
  const EVERY = 2000;
  let seen = "";

  async function ask() {
    try {
      const answer = await fetch("progress.json", { cache: "no-store" });
      const found = await answer.json();
      document.getElementById("lost").hidden = true;
      document.getElementById("progress").innerHTML = found.progress;
      const shown = document.querySelectorAll(".plot").length;
      if (found.finished || shown !== Object.keys(found.charts).length) location.reload();
      // Nothing is drawn anew beneath the pointer of somebody who reads it.
      else if (found.seen !== seen && !document.querySelector(".plot:hover")) {
        await drawAll(found.charts);
        seen = found.seen;
      }
    } catch {
      document.getElementById("lost").hidden = false;
    }
    setTimeout(ask, EVERY);
  }
  setTimeout(ask, EVERY);
})();
