"""Where a run takes place: what starts it on rented or shared machines."""
