package leak

// Takes returns what a call of n units takes of the limit. The least is a billionth
// of the capacity, or 0; and what is above the capacity by no more than half of
// that is rounding: such a call takes all of it.
func (l Limit) Takes(n float64) float64 {
	switch {
	case n <= 0:
		return n
	case n <= l.Capacity:
		return max(n, l.Capacity*1e-9)
	case n <= l.Capacity*(1+0.5e-9):
		return l.Capacity
	}
	return n
}
