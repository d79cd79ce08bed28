"""The steps of one session, in their order: stage, audit, publish, commit. `execution.run` puts them together.

`attempt` and `run_context` have what all steps share; `external_writes` checks what another program has staged. May
import `incremental.staging`, `execution.session_log` and the folders before them.
"""
