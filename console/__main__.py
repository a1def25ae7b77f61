"""The `llmconsole` command."""

import sys
from contextlib import suppress


def main() -> None:
    """Run the command line; exits with 0, 1 (it failed), 2 (asked wrongly) or 130 (interrupted).

    Nobody gets a traceback: errors we expect are sentences, and one we don't expect names its type and place.
    """
    from console.cli.app import app
    from console.cli.output import error

    try:
        app(prog_name="llmconsole")
    except KeyboardInterrupt:
        sys.exit(130)
    except BrokenPipeError:
        # The reader of a pipe went away, as `| head` does. Python would complain again when it flushes at exit.
        with suppress(OSError):
            sys.stdout.close()
        sys.exit(1)
    except Exception as caught:
        place = caught.__traceback__
        while place is not None and place.tb_next is not None:
            place = place.tb_next
        where = f" ({place.tb_frame.f_code.co_filename}:{place.tb_lineno})" if place is not None else ""
        error(f"llmconsole met an error it doesn't know. {type(caught).__name__}: {caught}{where}")
        sys.exit(1)


if __name__ == "__main__":
    main()
