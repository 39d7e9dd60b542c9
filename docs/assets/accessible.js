// What the theme leaves out for those who use a screen reader or no mouse: the search's name, tables that scroll by keys.
document$.subscribe(() => {
  document.querySelector(".md-search")?.setAttribute("aria-label", "Search");
  document.querySelectorAll(".md-typeset__scrollwrap").forEach((table) => table.setAttribute("tabindex", "0"));
});
