"""What an operator may ask of a broker: plain functions, behind the HTTP API, the control socket, and other nodes."""
