// Runs before the first paint, so that a chosen theme never flashes. The switch itself is in app.js.
(() => {
  try {
    const theme = localStorage.getItem("flywheel.theme");
    if (theme === "light" || theme === "dark") document.documentElement.dataset.theme = theme;
  } catch {
    // storage may be closed to us; then the system's choice stands
  }
})();
