"""What people look at: tables on a terminal. The only room that imports rich."""
