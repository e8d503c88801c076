// Reads values off the curves under the pointer. The paths are steps: M left y, then H x V y for every reading.
const reading = document.body.appendChild(Object.assign(document.createElement("div"), { className: "reading" }));
const bytes = n => n >= 1e9 ? (n / 1e9).toFixed(3) + " GB" : n >= 1e6 ? (n / 1e6).toFixed(3) + " MB" : (n / 1e3).toFixed(1) + " kB";
const time = s => Math.abs(s) < 1 ? (s * 1e3).toFixed(2) + " ms" : s.toFixed(3) + " s";
for (const svg of document.querySelectorAll("svg")) {
  const at = Object.fromEntries(Object.entries(svg.dataset).map(([name, value]) => [name, +value]));
  const curves = ["sent", "acknowledged"].map(name => {
    const path = svg.querySelector(".curve." + name).getAttribute("d");
    const steps = [[at.left, +path.match(/^M\S+ ([\d.-]+)/)[1]]];
    for (const [, x, y] of path.matchAll(/H([\d.-]+)V([\d.-]+)/g)) steps.push([+x, +y]);
    return { dot: svg.querySelector(".dot." + name), steps };
  });
  const cursor = svg.querySelector(".cursor"), touch = svg.querySelector(".touch");
  const show = visible => [cursor, reading, ...curves.map(c => c.dot)].forEach(e => e.style.visibility = visible ? "visible" : "hidden");
  const stepAt = (steps, x) => {
    let low = 0, high = steps.length;
    while (high - low > 1) { const middle = low + high >> 1; if (steps[middle][0] <= x) low = middle; else high = middle; }
    return steps[low];
  };
  touch.addEventListener("pointermove", event => {
    const x = new DOMPoint(event.clientX, event.clientY).matrixTransform(svg.getScreenCTM().inverse()).x;
    const share = (x - at.left) / (at.right - at.left);
    const values = curves.map(({ dot, steps }) => {
      const y = stepAt(steps, x)[1];
      dot.setAttribute("cx", x); dot.setAttribute("cy", y);
      return at.low + (at.bottom - y) / (at.bottom - at.top) * (at.high - at.low);
    });
    cursor.setAttribute("x1", x); cursor.setAttribute("x2", x);
    reading.textContent = time(at.from + share * (at.to - at.from)) + " after the fault\nsent " + bytes(values[0])
      + "\nacknowledged " + bytes(values[1]) + "\nin flight " + bytes(Math.max(0, values[0] - values[1]));
    show(true);
    const box = reading.getBoundingClientRect();
    reading.style.left = Math.min(event.clientX + 16, innerWidth - box.width - 8) + "px";
    reading.style.top = Math.max(8, event.clientY - box.height - 12) + "px";
  });
  touch.addEventListener("pointerleave", () => show(false));
}
