// Colours for the canvas, read from the style sheet (widget.css) and again when the theme changes.

const NAMES = ["fg", "muted", "grid", "bg", "band", "c2", "c3", "c4", "c5", "font"];
// may be mixed of others, which a canvas cannot do
const MIXED = ["c1", "g1"];

export function readTheme(element) {
  const style = getComputedStyle(element);
  const theme = {};
  for (const name of NAMES) theme[name] = style.getPropertyValue(`--pk-${name}`).trim();
  const probe = element.appendChild(document.createElement("i"));
  for (const name of MIXED) {
    probe.style.color = `var(--pk-${name}, var(--pk-fg))`;
    theme[name] = getComputedStyle(probe).color;
  }
  probe.remove();
  return theme;
}

/** Call `changed` after each change of theme (JupyterLab, VS Code, Colab or the system's). */
export function onThemeChange(changed) {
  let timer = 0;
  const soon = () => {
    changed();
    clearTimeout(timer);
    timer = setTimeout(changed, 300); // a theme's style sheet may load after its name changes
  };
  const observer = new MutationObserver(soon);
  const attributes = ["data-jp-theme-name", "data-jp-theme-light", "class", "theme", "data-theme"];
  for (const element of [document.documentElement, document.body])
    observer.observe(element, { attributes: true, attributeFilter: attributes });
  const media = matchMedia("(prefers-color-scheme: dark)");
  media.addEventListener("change", soon);
  return () => {
    clearTimeout(timer);
    observer.disconnect();
    media.removeEventListener("change", soon);
  };
}
