"""The screen of ``top``: the only module that imports Textual."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Protocol

from rich.cells import cell_len
from rich.text import Text
from textual.app import App
from textual.binding import Binding
from textual.containers import Vertical, VerticalScroll
from textual.screen import ModalScreen
from textual.widgets import DataTable, Footer, Input, RichLog, Static

from remote_tool.cli.output.sanitize import one_line
from remote_tool.cli.tables.jobs import short_command
from remote_tool.errors import RemoteToolError
from remote_tool.jobs.job import JobState

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from textual.app import ComposeResult
    from textual.events import Resize

    from remote_tool.cli.top.board import Board, Row
    from remote_tool.jobs.job import Job

REFRESH_SECONDS = 0.5
# Lines of a log, for scrolling back.
MOST_LINES = 10_000
KEYS = """\
l       follow the log of the selected job
a       attach to its terminal
t       show where its Python processes are
k       stop it, after a question
/       show only rows with a text; Esc shows all
s       sort the table by its next column
Tab     go to the other table
q       quit\
"""
KEYS_OF_LOG = """\
Up, Down, PgUp, PgDn    scroll
Home                    go to the first line that is shown
End                     go to the last line, and follow
q, Esc                  go back to top; the job keeps running\
"""
SERVERS, JOBS = "servers", "jobs"
SERVER_COLUMNS = (
    *("SERVER", "GPUS", "USE", "RESERVED", "TREND", "GPU MEM", "TEMP", "POWER", "CPU", "MEMORY", "DISK FREE"),
    "PROBLEM",
)
JOB_COLUMNS = ("KEY", "SERVER", "STATE", "LAUNCH", "PROGRESS", "LOSS", "TREND", "DURATION", "NAME", "COMMAND")
# Columns that a narrow terminal drops, after those without a value.
DROPPED = (
    *("TREND", "POWER", "TEMP", "NAME", "DISK FREE", "DURATION", "GPU MEM", "LAUNCH", "MEMORY", "LOSS", "CPU"),
    "RESERVED",
)
# The last column is cut at the edge of the terminal.
LEAST_LAST = {"PROBLEM": 30, "COMMAND": 12}
GAP = 2  # between two columns of a table, in Textual


class Actions(Protocol):
    """The actions of the keys; returned text is shown."""

    def log(self, job: Job, show: Callable[[str], None]) -> Callable[[], None]: ...
    def attach(self, job: Job) -> None: ...
    def stacks(self, job: Job) -> str: ...
    def kill(self, job: Job) -> str: ...


class ConfirmScreen(ModalScreen[bool]):
    """Asks yes or no; no is the default."""

    BINDINGS: ClassVar = [
        Binding("y", "dismiss(True)", "Yes"),
        Binding("n,escape,enter,q", "dismiss(False)", "No"),
    ]

    def __init__(self, text: str) -> None:
        super().__init__()
        self._text = text

    def compose(self) -> ComposeResult:
        """Show the question."""
        yield Static(f"{self._text} [y/N]", id="question", markup=False)


class TextScreen(ModalScreen[None]):
    """Shows a long text."""

    BINDINGS: ClassVar = [Binding("escape,q,enter", "dismiss", "Back")]

    def __init__(self, text: str) -> None:
        super().__init__()
        self._text = text

    def compose(self) -> ComposeResult:
        """Show the text."""
        with VerticalScroll(id="pages"):
            yield Static(self._text, markup=False)
        yield Footer()


class LogScreen(ModalScreen[None]):
    """Follows the log of a job until it is left; another thread reads it."""

    BINDINGS: ClassVar = [
        Binding("escape,q,enter", "dismiss", "Back"),
        Binding("question_mark", "help", "Keys", key_display="?"),
    ]

    def __init__(self, job: Job, actions: Actions) -> None:
        super().__init__()
        self._job = job
        self._actions = actions
        self._stop: Callable[[], None] = lambda: None

    def compose(self) -> ComposeResult:
        """Show the title, the log and the keys."""
        with Vertical(id="pages"):
            title = f"log of job {self._job.key} on {self._job.server}: {short_command(self._job)}"
            yield Static(title, classes="title", markup=False)
            yield RichLog(id="log", wrap=True, max_lines=MOST_LINES)
        yield Footer()

    def on_mount(self) -> None:
        """Begin to follow."""
        self.query_one("#log").focus()
        if self._job.state is JobState.QUEUED:
            self._show(one_line(f"queued: {self._job.reason}"))
        # Another thread finds the app only through the screens above this one, which may just change.
        app = self.app
        self._stop = self._actions.log(self._job, lambda text: app.call_from_thread(self._show, text))

    def on_unmount(self) -> None:
        """Follow no longer."""
        self._stop()

    def action_help(self) -> None:
        """Explain the keys."""
        self.app.push_screen(TextScreen(KEYS_OF_LOG))

    def _show(self, text: str) -> None:
        if self.is_running:
            log = self.query_one("#log", RichLog)
            log.write(Text.from_ansi(text), scroll_end=log.is_vertical_scroll_end)


class TopApp(App[None]):
    """Servers above, jobs below, and the details of the selected row."""

    TITLE = "remote-tool top"
    ENABLE_COMMAND_PALETTE = False
    CSS = """
    DataTable { scrollbar-size-horizontal: 0; }
    #summary { height: 1; background: $panel; text-style: bold; }
    #servers { height: auto; max-height: 40%; }
    #jobs { height: 1fr; min-height: 4; border-top: solid $panel; }
    #details { height: auto; max-height: 55%; border-top: solid $panel; }
    #filter { display: none; height: 3; }
    #filter.shown { display: block; }
    ConfirmScreen, TextScreen, LogScreen { align: center middle; }
    #question { width: auto; max-width: 90%; padding: 1 2; border: solid $accent; background: $surface; }
    #pages .title { height: auto; background: $panel; text-style: bold; }
    #pages { width: 95%; height: 90%; border: solid $accent; background: $surface; }
    """
    BINDINGS: ClassVar = [
        Binding("l", "log", "Log"),
        Binding("a", "attach", "Attach"),
        Binding("t", "stacks", "Stacks"),
        Binding("k", "kill", "Kill"),
        Binding("slash", "filter", "Filter", key_display="/"),
        Binding("s", "sort", "Sort"),
        Binding("question_mark", "help", "Keys", key_display="?"),
        Binding("escape", "clear_filter", show=False),
        Binding("q", "quit", "Quit"),
    ]

    def __init__(self, board: Board, actions: Actions) -> None:
        super().__init__()
        self._board = board
        self._actions = actions
        self._filter = ""
        self._width = 0
        self._drawn: dict[str, dict[str, Row]] = {}
        # The selected row of each table with new columns, until it is filled again.
        self._selected_before: dict[str, str] = {}

    def compose(self) -> ComposeResult:
        """Make the widgets."""
        yield Static(id="summary", markup=False)
        yield DataTable(id=SERVERS, cursor_type="row", zebra_stripes=True)
        yield DataTable(id=JOBS, cursor_type="row", zebra_stripes=True)
        with VerticalScroll(id="details", can_focus=False):
            yield Static(id="text", markup=False)
        yield Input(id="filter", placeholder="filter servers and jobs; Esc shows all")
        yield Footer()

    def on_mount(self) -> None:
        """Start to refresh."""
        self._width = self.size.width
        self.refresh_tables()
        self.query_one(f"#{JOBS}" if self._board.job_rows() else f"#{SERVERS}").focus()
        self.set_interval(REFRESH_SECONDS, self.refresh_tables)

    def on_resize(self, event: Resize) -> None:
        """Choose the columns that fit."""
        self._width = event.size.width
        self.refresh_tables()

    def refresh_tables(self) -> None:
        """Draw the changes."""
        if not self.is_running:
            return  # the widgets are being removed; Textual stops timers and events only after that
        if self._board.has_ended:
            self.exit()
            return
        self._fill(SERVERS, self._board.server_rows(self._filter))
        self._fill(JOBS, self._board.job_rows(self._filter))
        shown = f"  filter: {self._filter}" if self._filter else ""
        order = f"  sorted by {self._board.server_order} and {self._board.job_order}"
        notice = f"  {self._board.notice}" if self._board.notice else ""
        self.query_one("#summary", Static).update(f"{self._board.summary()}{order}{shown}{notice}")
        self._show_details()

    def on_data_table_row_highlighted(self) -> None:
        """Show the details of the selected row."""
        self._show_details()

    def on_descendant_focus(self) -> None:
        """Show the details of the selected row of the other table."""
        self._show_details()

    def on_input_changed(self, event: Input.Changed) -> None:
        """Filter while the user types."""
        self._filter = event.value
        self.refresh_tables()

    def on_input_submitted(self) -> None:
        """Keep the filter, and go back to the tables."""
        self._hide_filter()

    def action_filter(self) -> None:
        """Ask for a text that rows have to contain."""
        field = self.query_one("#filter", Input)
        field.add_class("shown")
        field.focus()

    def action_clear_filter(self) -> None:
        """Show all rows."""
        self.query_one("#filter", Input).value = ""
        self._hide_filter()

    def action_sort(self) -> None:
        """Sort the table with the cursor by its next column."""
        if self._focused_table == SERVERS:
            self._board.sort_servers()
        else:
            self._board.sort_jobs()
        self.refresh_tables()

    def action_log(self) -> None:
        """Follow the log of the selected job."""
        if (job := self._selected_job()) is not None:
            self.push_screen(LogScreen(job, self._actions))

    def action_help(self) -> None:
        """Explain the keys."""
        self.push_screen(TextScreen(KEYS))

    def action_attach(self) -> None:
        """Attach to the terminal of the selected job."""
        job = self._selected_job()
        if job is None:
            return
        if not job.terminal:
            self.notify(f"Job {job.key} has no terminal; start it with job-run --tty", severity="warning")
            return
        with self.suspend():
            self._actions.attach(job)

    def action_stacks(self) -> None:
        """Show where the Python processes of the selected job are."""
        if (job := self._selected_job()) is not None:
            self.notify(f"asking where job {job.key} is")
            self.run_worker(lambda: self._say_stacks(job), thread=True, exclusive=True, group="stacks")

    def action_kill(self) -> None:
        """Stop the selected job, after a question."""
        if (job := self._selected_job()) is None:
            return

        def answered(is_sure: bool | None) -> None:
            if is_sure:
                self.notify(f"stopping job {job.key}")
                self.run_worker(lambda: self._kill(job), thread=True)

        self.push_screen(ConfirmScreen(f"Stop job {job.key} on {job.server}: {short_command(job)}?"), answered)

    def _say_stacks(self, job: Job) -> None:
        try:
            text = self._actions.stacks(job)
        except RemoteToolError as error:
            self.call_from_thread(self.notify, str(error), severity="error", markup=False)
        else:
            self.call_from_thread(self.push_screen, TextScreen(text))

    def _kill(self, job: Job) -> None:
        try:
            text, severity = self._actions.kill(job), "information"
        except RemoteToolError as error:
            text, severity = str(error), "error"
        self.call_from_thread(self.notify, text, severity=severity, markup=False)

    @property
    def _focused_table(self) -> str:
        return SERVERS if self.focused is not None and self.focused.id == SERVERS else JOBS

    def _selected(self, table: str) -> str:
        keys, cursor = [*self._drawn.get(table, ())], self.query_one(f"#{table}", DataTable).cursor_row
        return keys[cursor] if 0 <= cursor < len(keys) else ""

    def _selected_job(self) -> Job | None:
        job = self._board.job(self._selected(JOBS))
        if job is None:
            self.notify("There is no job to choose", severity="warning")
        return job

    def _show_details(self) -> None:
        if not self.is_running:
            return
        width = max(20, self._width - 4)
        if self._focused_table == SERVERS:
            lines = self._board.server_details(self._selected(SERVERS), width)
        else:
            lines = self._board.job_details(self._selected(JOBS), width)
        self.query_one("#text", Static).update("\n".join(lines))

    def _hide_filter(self) -> None:
        self.query_one("#filter", Input).remove_class("shown")
        self.query_one(f"#{JOBS}").focus()

    def _make_columns(self, table: str, rows: Sequence[tuple[str, Row]]) -> None:
        """Show the columns that fit."""
        widget = self.query_one(f"#{table}", DataTable)
        columns = fitting(SERVER_COLUMNS if table == SERVERS else JOB_COLUMNS, [row for _, row in rows], self._width)
        if [str(column.label) for column in widget.ordered_columns] != columns:
            selected = self._selected(table)
            widget.clear(columns=True)
            for name in columns:
                widget.add_column(name, key=name)
            self._drawn[table] = {}
            self._selected_before = {**self._selected_before, table: selected}

    def _fill(self, table: str, rows: Sequence[tuple[str, Row]]) -> None:
        """Update cells in place while the rows are the same, so that the cursor stays."""
        self._make_columns(table, rows)
        widget = self.query_one(f"#{table}", DataTable)
        names = [str(column.label) for column in widget.ordered_columns]
        drawn = self._drawn.get(table, {})
        new = dict(rows)
        if [*new] != [*drawn]:
            selected = self._selected_before.pop(table, "") or self._selected(table)
            widget.clear()
            for key, row in rows:
                # Not as plain strings, in which Textual would look for markup.
                widget.add_row(*(Text(row.get(name, "")) for name in names), key=key)
            self._drawn[table] = new
            if selected in new:
                widget.move_cursor(row=[*new].index(selected))
            return
        for key, row in rows:
            for name in names if row != drawn[key] else ():
                if row.get(name) != drawn[key].get(name):
                    widget.update_cell(key, name, Text(row.get(name, "")), update_width=True)
        self._drawn[table] = new


def fitting(names: Sequence[str], rows: Sequence[Row], width: int) -> list[str]:
    """Return the columns that fit a terminal; columns without a value are dropped first, then less important ones."""
    widths = {name: max([len(name), *(cell_len(row.get(name, "")) for row in rows)]) + GAP for name in names}
    widths[names[-1]] = min(widths[names[-1]], LEAST_LAST[names[-1]] + GAP)
    shown = list(names)
    empty = [name for name in names if rows and not any(row.get(name) for row in rows)]
    for name in (*reversed(empty), *DROPPED):
        if sum(widths[each] for each in shown) <= width:
            break
        if name in shown:
            shown.remove(name)
    return shown
