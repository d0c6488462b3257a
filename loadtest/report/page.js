"use strict";
for (const figure of JSON.parse(document.getElementById("data").textContent)) {
  const section = document.createElement("section");
  document.getElementById("figures").append(section);
  Chart(section, figure);
}
