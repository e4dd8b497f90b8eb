"""amplint's own findings: what it could not read, could not finish, or was told to keep quiet about in vain.

The pipeline makes these; the classes carry their catalogue entries and pages.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from amplint.rule import Finding, Rule, Severity

if TYPE_CHECKING:
    from amplint.context import Context


class OwnRule(Rule):
    """A rule that judges no code: the pipeline reports it."""

    def check(self, context: Context) -> Iterator[Finding]:
        yield from ()


class UnreadableFile(OwnRule):
    """A file that a rule would look at cannot be decoded or parsed.

    ## What it does
    Reports, once per file, that the bytes are no text in the encoding they declare, or the text is no Python of any
    version. The other files go on. A broken file with nothing of torch in it is not reported: that is Python's own
    affair.

    ## Why is this bad?
    Nothing in the file was judged, so its silence proves nothing. It counts as an error in the exit status.

    ## Fix
    None. Mend the file, or exclude it.
    """

    code = "AMP000"
    name = "unreadable-file"
    severity = Severity.ERROR
    summary = "a file that cannot be decoded or parsed"
    triggers = ()


class AnalysisIncomplete(OwnRule):
    """Something was not judged: a bound was hit, a rule failed, a worker died, or a notebook cell does not parse.

    ## What it does
    Says what was left out and why, on the first line of the file or on the function concerned.

    ## Why is this bad?
    A finding may be missing. If a rule failed, that is a fault of amplint: run again with `-v` for the traceback, and
    report it.

    ## Fix
    None.
    """

    code = "AMP001"
    name = "analysis-incomplete"
    severity = Severity.INFO
    summary = "something was not judged, and why"
    triggers = ()


class UnusedSuppression(OwnRule):
    """A suppression comment silences nothing.

    ## What it does
    Finds `# amplint: ignore`, `# amplint: ignore[CODE]`, `# amplint: ignore-file` and `# noqa: AMP…` comments where
    the rules they name did run and found nothing there. A bare `# noqa` may serve another tool and is left alone.

    ## Why is this bad?
    The comment outlived the fault it was written for. It misleads the reader, and it will hide the next fault of that
    kind on its line.

    ## Example
    ```python
    logp = F.log_softmax(logits, dim=-1)  # amplint: ignore[AMP101]
    ```
    Use instead:
    ```python
    logp = F.log_softmax(logits, dim=-1)
    ```

    ## Fix
    Safe: removes the comment, or the code that is not needed from its list.
    """

    code = "AMP002"
    name = "unused-suppression"
    severity = Severity.INFO
    summary = "a suppression comment that silences nothing"
    triggers = ((b"amplint",), (b"noqa", b"AMP"), (b"NOQA", b"AMP"))
    fixable = "safe"


OWN_RULES: tuple[type[Rule], ...] = (UnreadableFile, AnalysisIncomplete, UnusedSuppression)
