// What is asked of the page. Contrast is that of WCAG 2: https://www.w3.org/TR/WCAG22/#dfn-contrast-ratio
(() => {
  const canvas = new OffscreenCanvas(1, 1).getContext("2d", { willReadFrequently: true });
  const known = new Map();
  // colour is [r, g, b, a] of any colour of CSS, a from 0 to 1; null for none.
  const colour = (text) => {
    if (!text || text === "none") return null;
    if (!known.has(text)) {
      canvas.clearRect(0, 0, 1, 1);
      canvas.fillStyle = text;
      canvas.fillRect(0, 0, 1, 1);
      const [r, g, b, a] = canvas.getImageData(0, 0, 1, 1).data;
      known.set(text, [r, g, b, a / 255]);
    }
    return known.get(text);
  };
  const over = (front, back) => front.slice(0, 3).map((c, i) => c * front[3] + back[i] * (1 - front[3])).concat(1);
  const luminance = (c) => {
    const [r, g, b] = c.map((v) => v / 255).map((v) => (v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const contrast = (a, b) => {
    const [x, y] = [luminance(a), luminance(b)].sort((m, n) => n - m);
    return (x + 0.05) / (y + 0.05);
  };
  const behind = (element) => {
    let layers = [];
    for (let e = element; e; e = e.parentElement) {
      const c = colour(getComputedStyle(e).backgroundColor);
      if (c && c[3] > 0) layers.push(c);
      if (c && c[3] === 1) break;
    }
    return layers.reverse().reduce((back, front) => over(front, back), [255, 255, 255, 1]);
  };
  const where = (e) => e.localName + (e.id ? "#" + e.id : "") + (e.getAttribute("class") ? "." + e.getAttribute("class") : "");
  const lowest = () => {
    const least = { ratio: 99, of: 0, where: "" };
    return [least, (ratio, e, text) => {
      least.of++;
      if (ratio < least.ratio) Object.assign(least, { ratio: Math.round(ratio * 100) / 100, where: where(e) + " " + text });
    }];
  };
  const visible = (e) => {
    const box = e.getBoundingClientRect();
    return box.width > 1 && box.height > 1 && box.right > 0 && getComputedStyle(e).visibility === "visible";
  };

  window.askText = () => {
    const [least, add] = lowest();
    const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
    for (let node = walker.nextNode(); node; node = walker.nextNode()) {
      const e = node.parentElement, text = node.data.trim();
      if (!text || ["SCRIPT", "STYLE", "NOSCRIPT", "title", "desc"].includes(e.nodeName) || !visible(e)) continue;
      const style = getComputedStyle(e), back = behind(e);
      const front = colour(e instanceof SVGElement ? style.fill : style.color);
      add(contrast(over(front, back), back), e, text.slice(0, 40));
    }
    return least;
  };
  // A shape is seen by its fill or by its edge.
  window.askGraphics = () => {
    const [least, add] = lowest();
    for (const e of document.querySelectorAll("main svg :is(.dot, .work, .held, .slack, .over, .mark, .end), main svg.key")) {
      if (e.closest(".symbols") || !e.closest("svg").checkVisibility()) continue;
      const style = getComputedStyle(e), back = behind(e.closest("svg").parentElement);
      const fill = colour(style.fill), stroke = colour(style.stroke);
      const ratios = [fill && over([...fill.slice(0, 3), fill[3] * style.fillOpacity], back), stroke].filter(Boolean).map((c) => contrast(c, back));
      add(Math.max(...ratios), e, "");
    }
    return least;
  };
  window.askFocus = () => {
    const e = document.activeElement;
    if (!e || e === document.body || e === document.documentElement) return { Which: "", Outline: false };
    const style = getComputedStyle(e);
    const place = [...document.querySelectorAll("*")].indexOf(e);
    return { Which: where(e) + "@" + place, Outline: style.outlineStyle !== "none" && parseFloat(style.outlineWidth) > 0 };
  };
  const state = () => ({
    Focus: document.activeElement ? where(document.activeElement) + (document.activeElement.getAttribute("href") || "") : "",
    Open: [...document.querySelectorAll("details")].some((d) => d.open),
    Marked: window.marked === true,
  });
  window.askBefore = () => {
    window.marked = true;
    for (const d of document.querySelectorAll("details")) d.open = true;
    const link = document.querySelector("main a, main summary, nav a, a");
    if (link) link.focus();
    document.querySelector("main").dataset.old = "1";
    return state();
  };
  window.askAfter = state;
})();
