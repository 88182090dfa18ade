"""What each detector looks for, as a reviewer is told."""

ABOUT = {
    "broken_output": (
        "Calls whose arguments are no JSON object, calls without the name of a tool, messages that begin as JSON "
        "and cannot be read as it, and calls that were written as text so that nothing ran."
    ),
    "unknown_tool": (
        "Calls of a tool that is not among those the agent had, or that the other side answered with “no such tool”."
    ),
    "broken_schema": (
        "Calls whose arguments break the JSON schema of their tool: a field that is missing, of the wrong type, "
        "or not one of the choices. A call that went through in a run that succeeded is left alone."
    ),
    "invented_value": (
        "Arguments that must come from somewhere (ids, addresses, names of things that the agent's world refers "
        "to) and that occur nowhere in what the agent had been told, nor in the state."
    ),
    "contradicted_value": (
        "An argument with a fixed choice of values where the user had named one of them and the agent chose another."
    ),
    "other_tool": (
        "Where it is known what should have been called: the agent called other tools and never that one. It "
        "needs an expected call and proposes nothing in ordinary traffic."
    ),
    "other_arguments": (
        "Where it is known what should have been called: the right tool, with other arguments. It needs an "
        "expected call and proposes nothing in ordinary traffic."
    ),
    "repeated_loop": (
        "The same call with the same arguments and the same answer three times or more, or five calls of one tool "
        "in a row that brought nothing. Tools that wait or poll are left alone."
    ),
    "ignored_error": (
        "A tool answered with an error, nothing after it put that right, and the agent closed as if all had gone well."
    ),
    "unfinished": (
        "Runs that end before they are over: cut off at the token limit, stopped at a limit of steps or time, "
        "with an empty answer, in the middle of a call, or on a call that was never answered."
    ),
    "unsafe_call": (
        "Calls of a tool that policy forbids, or of one that is marked unsafe where the user had asked for "
        "nothing of the kind."
    ),
    "empty_retrieval": (
        "All searches brought nothing or failed, and the agent went on to change something, or closed as if it "
        "had found what it needed."
    ),
    "false_claim": (
        "A run that was reported as failed and whose agent says that it is done; one reported as a success whose "
        "last call failed; a claim to have changed something where only lookups went through."
    ),
    "reported": (
        "The last resort: the run was reported as failed, or a person stepped in, and no other detector can say "
        "why. It proposes only where nothing better is proposed."
    ),
}
"""By the detector's name."""
