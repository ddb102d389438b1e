"""CONNECT, and the end of connections and sessions: admission, deadlines, wills, sessions restored at start."""
