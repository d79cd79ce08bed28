"""Services are started together: a supervisor runs them, and a person sees which are ready."""
